"""`fedmap-site bundle fetch`: a bundle from the federation, or from a link. A broken download is resumed.

Over the federation's own channel the release key and the withdrawals come along. A link needs no enrolment;
what it brings is believed only under a key that is pinned, or typed from paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import FedmapError, StateError
from fedmap_site.cli.bundles.shelf import (
    Fingerprint,
    Store,
    day,
    install_from,
    now_ms,
    open_store,
    say_installed,
    settings_if_any,
)
from fedmap_site.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    JsonValue,
    load_config,
    print_json,
    print_table,
    print_text,
    say,
)

if TYPE_CHECKING:
    from fedmap_site.bundles.download import Progress, Source
    from fedmap_site.bundles.store import BundleStore
    from fedmap_site.config import SiteConfig
    from fedmap_site.link.connection import Connection
    from fedmap_site.link.https import Link, Way


@dataclass(frozen=True)
class _Order:
    """What was asked for."""

    name: str
    version: int | None
    folder: Path
    fingerprint: str
    install: bool
    as_json: bool


def fetch_command(
    reference: Annotated[
        str, typer.Argument(help="NAME or NAME-VERSION; without it: list what is offered.")
    ] = "",
    link: Annotated[str, typer.Option("--link", help="A download link, or the address of a page.")] = "",
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the file; default: in the store.")
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install it at once.")] = False,
    authority: Annotated[
        Path | None,
        typer.Option("--ca", exists=True, dir_okay=False, help="Authority of the link's server (PEM)."),
    ] = None,
    proxy: Annotated[str, typer.Option(help="For --link: http://host:port of a proxy.")] = "",
    fingerprint: Fingerprint = "",
    store: Store = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Download a bundle and verify it. Run again after a failure: it goes on where it stopped."""
    from fedmap_site.bundles.records import split_reference

    named = split_reference(reference) if reference else ("", None)
    if named is None:
        raise typer.BadParameter(f"{reference!r} is not NAME or NAME-VERSION, such as uci-heart-t2-1")
    if not link and (authority is not None or proxy):
        raise typer.BadParameter("--ca and --proxy are for --link; else they stand in the configuration")
    shelf = open_store(store, config)
    order = _Order(*named, out or shelf.downloads, fingerprint, install, as_json)
    if link:
        from fedmap_site.link.https import parse_link

        settings, parsed = settings_if_any(config), parse_link(link)
        _from_link(shelf, order, parsed, _way(parsed, settings, authority, proxy))
        return
    _from_federation(shelf, order, load_config(config))


def pin_release_key(shelf: BundleStore, connection: Connection) -> str:
    """Trust the key that the aggregator names at first contact; another one later is an error.

    The fingerprint, or an empty text where the aggregator has no release key yet.
    """
    from fedmap.trust.signing import shown_fingerprint
    from fedmap_site.wiring import software_version

    announced = connection.hello(software_version()).release_key
    if not announced:
        return ""
    shelf.pin_key(announced, "the aggregator, at first contact", now_ms())
    return shown_fingerprint(announced)


def _from_federation(shelf: BundleStore, order: _Order, settings: SiteConfig) -> None:
    from fedmap_site.bundles.download import FederationSource
    from fedmap_site.wiring import Site

    with Site(settings).connect() as connection:
        key = pin_release_key(shelf, connection)
        signed = connection.withdrawals() if key else b""
        if signed:
            shelf.accept_withdrawals(signed)
        if not order.name:
            _list_offered(connection, order.as_json)
            return
        _fetch(shelf, order, FederationSource(connection, order.name, order.version))


def _from_link(shelf: BundleStore, order: _Order, link: Link, way: Way) -> None:
    from fedmap_site.bundles.links import WebSource

    source = WebSource(link, way, order.name, order.version)
    if shelf.trust.trusted():
        signed = source.withdrawals()
        try:
            if signed is not None:
                shelf.accept_withdrawals(signed)
        except StateError as error:
            # A hospital that hands bundles on may lag behind; what is known here stays in force.
            say.print(f"note: {error.message}", markup=False, highlight=False, soft_wrap=True)
    elif order.install:
        shelf.trust.fingerprints(order.fingerprint)  # fail before the download, not after it
    _fetch(shelf, order, source)


def _fetch(shelf: BundleStore, order: _Order, source: Source) -> None:
    from fedmap_site.bundles.download import download

    with _bar(order) as progress:
        file = download(source, order.folder, progress)
    if not order.fingerprint and not shelf.trust.trusted():
        _say_unverified(file, order)
        return
    try:
        bundle = shelf.verify(file, now_ms(), order.fingerprint)
    except FedmapError:
        say.print(f"{file} was downloaded, and must not be used:", markup=False, soft_wrap=True)
        raise
    installed = install_from(shelf, file, order.fingerprint, False) if order.install else None
    if order.as_json:
        print_json(
            {
                "file": str(shelf.path_of(installed) if installed else file),
                "name": bundle.manifest.name,
                "version": bundle.manifest.version,
                "sha256": installed.sha256 if installed else bundle.sha256,
                "size": bundle.size,
                "verified": True,
                "installed": installed is not None,
            }
        )
    elif installed is not None:
        say_installed(shelf, installed)
    else:
        given = bundle.manifest.name if file.parent == shelf.downloads else str(file)
        print_text(
            f"{file}: all steps of the verification passed.", f"Next: fedmap-site bundle install {given}"
        )


def _say_unverified(file: Path, order: _Order) -> None:
    if order.as_json:
        print_json({"file": str(file), "verified": False, "installed": False})
        return
    print_text(
        f"{file}: downloaded, not verified: no release key is trusted here yet.",
        f"Next: fedmap-site bundle verify {file} --fingerprint FINGERPRINT-ON-PAPER",
    )


def _list_offered(connection: Connection, as_json: bool) -> None:
    offered = connection.bundles()
    if as_json:
        rows: list[JsonValue] = [
            {
                "name": one.name,
                "version": one.version,
                "tier": one.tier,
                "title": one.title,
                "size": one.size,
                "sha256": one.sha256,
                "expires": day(one.expires_unix_ms),
                "withdrawn": one.withdrawn,
            }
            for one in offered
        ]
        print_json({"offered": rows})
    elif offered:
        print_table(
            ("name", "version", "tier", "title", "expires", "withdrawn"),
            [
                (o.name, str(o.version), str(o.tier), o.title, day(o.expires_unix_ms), o.withdrawn)
                for o in offered
            ],
        )
    else:
        print_text("The aggregator offers this site no bundle yet.")


def _way(link: Link, settings: SiteConfig | None, authority: Path | None, proxy: str) -> Way:
    """With a configuration its proxy counts; the site's certificate is shown to its own aggregator only."""
    from fedmap.files.durable import read_file
    from fedmap_site.link.https import Way, check_proxy

    given = read_file(authority) if authority is not None else None
    if settings is None:
        return Way(authority=given, proxy=check_proxy(proxy))
    from fedmap_site.config import host_of
    from fedmap_site.identity.files import CERTIFICATE, KEY, LINK, is_enrolled, read_identity
    from fedmap_site.identity.renewal import read_authority
    from fedmap_site.link.routes import route_of

    through = check_proxy(proxy) or route_of(settings.aggregator).proxy
    state = settings.site.state
    if link.host != host_of(settings.aggregator.address).lower() or not is_enrolled(state):
        return Way(authority=given, proxy=through)
    trusted = given or read_authority(settings.aggregator.ca_bundle) or read_identity(state).authority
    folder = (state / LINK).resolve()
    return Way(trusted, folder / CERTIFICATE, folder / KEY, through)


@contextmanager
def _bar(order: _Order) -> Iterator[Progress]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=say, disable=not say.is_terminal or order.as_json) as bar:
        task = bar.add_task(order.name or "bundle", total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)
