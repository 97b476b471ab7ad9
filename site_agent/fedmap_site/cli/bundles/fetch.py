"""`fedmap-site bundle fetch`: a bundle from the federation, or from a link. A broken download is resumed.

Over the federation's own channel the release key and the withdrawals come along. A link needs no enrolment;
what it brings is believed only under a key that is pinned, or typed from paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import FedmapError, StateError
from fedmap.process.command_line import JsonValue, WholeTable, moment, print_aside, say
from fedmap_site.cli.options import (
    Trusting,
    install_from,
    installed_lines,
    now_ms,
    pin_release_key,
    split_named,
)

if TYPE_CHECKING:
    from fedmap_site.bundles.download import Progress, Source
    from fedmap_site.bundles.links import WebSource
    from fedmap_site.bundles.store import BundleStore
    from fedmap_site.config import SiteConfig
    from fedmap_site.link.connection import Connection
    from fedmap_site.link.https import Link, Way


def fetch_command(
    given: Trusting,
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
) -> None:
    """Download a bundle and verify it. Run again after a failure: it goes on where it stopped."""
    name, version = split_named(reference) if reference else ("", None)
    if not link and (authority is not None or proxy):
        raise typer.BadParameter("--ca and --proxy are for --link; else they stand in the configuration")
    shelf = given.shelf()
    if link:
        from fedmap_site.bundles.links import WebSource
        from fedmap_site.link.https import parse_link

        settings, parsed = given.settings_if_any(), parse_link(link)
        web = WebSource(parsed, _way(parsed, settings, authority, proxy), name, version)
        _take_withdrawals(given, shelf, web, install)
        _fetch(given, shelf, web, name, out, install)
        return
    from fedmap_site.bundles.download import FederationSource

    with given.site().connect() as connection:
        key = pin_release_key(shelf, connection)
        signed = connection.withdrawals() if key else b""
        if signed:
            shelf.accept_withdrawals(signed)
        if not name:
            _list_offered(given, connection)
            return
        _fetch(given, shelf, FederationSource(connection, name, version), name, out, install)


def _take_withdrawals(given: Trusting, shelf: BundleStore, web: WebSource, install: bool) -> None:
    if shelf.trust.trusted():
        signed = web.withdrawals()
        try:
            if signed is not None:
                shelf.accept_withdrawals(signed)
        except StateError as error:
            # A hospital that hands bundles on may lag behind; what is known here stays in force.
            print_aside(f"note: {error.message}")
    elif install:
        shelf.trust.fingerprints(given.fingerprint)  # fail before the download, not after it


def _fetch(
    given: Trusting, shelf: BundleStore, source: Source, name: str, out: Path | None, install: bool
) -> None:
    from fedmap_site.bundles.download import download

    with _bar(name or "bundle", given.as_json) as progress:
        file = download(source, out or shelf.downloads, progress)
    if not given.fingerprint and not shelf.trust.trusted():
        given.tell(
            {"file": str(file), "verified": False, "installed": False},
            f"{file}: downloaded, not verified: no release key is trusted here yet.",
            f"Next: fedmap-site bundle verify {file} --fingerprint FINGERPRINT-ON-PAPER",
        )
        return
    try:
        bundle = shelf.verify(file, now_ms(), given.fingerprint)
    except FedmapError:
        print_aside(f"{file} was downloaded, and must not be used:")
        raise
    installed = install_from(shelf, file, given.fingerprint, False) if install else None
    next_one = bundle.manifest.name if file.parent == shelf.downloads else str(file)
    verified = (
        f"{file}: all steps of the verification passed.",
        f"Next: fedmap-site bundle install {next_one}",
    )
    given.tell(
        {
            "file": str(shelf.path_of(installed) if installed else file),
            "name": bundle.manifest.name,
            "version": bundle.manifest.version,
            "sha256": installed.sha256 if installed else bundle.sha256,
            "size": bundle.size,
            "verified": True,
            "installed": installed is not None,
        },
        *(installed_lines(shelf, installed) if installed else verified),
    )


def _list_offered(given: Trusting, connection: Connection) -> None:
    offered = connection.bundles()
    form: list[JsonValue] = [
        {
            "name": one.name,
            "version": one.version,
            "tier": one.tier,
            "title": one.title,
            "size": one.size,
            "sha256": one.sha256,
            "expires": moment(one.expires_unix_ms),
            "withdrawn": one.withdrawn,
        }
        for one in offered
    ]
    rows = [
        (o.name, str(o.version), str(o.tier), o.title, moment(o.expires_unix_ms), o.withdrawn)
        for o in offered
    ]
    table = WholeTable(("name", "version", "tier", "title", "expires", "withdrawn"), rows)
    given.tell({"offered": form}, table if rows else "The aggregator offers this site no bundle yet.")


def _way(link: Link, settings: SiteConfig | None, authority: Path | None, proxy: str) -> Way:
    """With a configuration its proxy counts; the site's certificate is shown to its own aggregator only."""
    from fedmap.files.durable import read_file
    from fedmap_site.link.https import Way, check_proxy

    given = read_file(authority) if authority is not None else None
    if settings is None:
        return Way(authority=given, proxy=check_proxy(proxy))
    from fedmap.process.addresses import host_of
    from fedmap_site.identity.enrolment import read_authority
    from fedmap_site.identity.files import CERTIFICATE, KEY, LINK, is_enrolled, read_identity
    from fedmap_site.link.https import route_of

    through = check_proxy(proxy) or route_of(settings.aggregator).proxy
    state = settings.site.state
    if link.host != host_of(settings.aggregator.address).lower() or not is_enrolled(state):
        return Way(authority=given, proxy=through)
    trusted = given or read_authority(settings.aggregator.ca_bundle) or read_identity(state).authority
    folder = (state / LINK).resolve()
    return Way(trusted, folder / CERTIFICATE, folder / KEY, through)


@contextmanager
def _bar(words: str, hidden: bool) -> Iterator[Progress]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=say, disable=hidden or not say.is_terminal) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)
