"""`fedmap-site bundle verify | install | list`, fully offline, and what all commands with a bundle share.

A clinic needs neither a configuration nor an enrolment: only the file and the fingerprint on paper.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import FedmapError, StateError
from fedmap_site.cli.output import (
    DEFAULT_CONFIG,
    MOUNTED_CONFIG,
    Config,
    Json,
    JsonValue,
    load_config,
    moment,
    now,
    print_json,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    from fedmap.bundles.verification import VerifiedBundle
    from fedmap_site.bundles.records import Installed
    from fedmap_site.bundles.store import BundleStore
    from fedmap_site.config import SiteConfig

STORE_VARIABLE = "FEDMAP_BUNDLES"

Reference = Annotated[
    str, typer.Option("--bundle", help="A file, or NAME or NAME-VERSION of an installed bundle.")
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar=STORE_VARIABLE,
        file_okay=False,
        help="Folder of the bundles; default: as configured, or fedmap/bundles among the user's data.",
    ),
]
Fingerprint = Annotated[
    str, typer.Option("--fingerprint", help="Of the federation's release key, as on paper.")
]
TrustNewKey = Annotated[
    bool, typer.Option("--trust-new-key", help="Trust this key although another one is trusted here.")
]
bundle_app = typer.Typer(
    help="Released models: get, verify, install, read.", no_args_is_help=True, add_completion=False
)


# What every command that takes a bundle shares


def open_bundle(reference: str, store: Path | None, fingerprint: str, config: Path) -> VerifiedBundle:
    """The bundle that a command was given, by --bundle, --store, --fingerprint and --config; verified now."""
    return open_store(store, config).open(reference, now_ms(), fingerprint)


def open_store(store: Path | None, config: Path) -> BundleStore:
    """The store that the options name. Records go to the site's audit log where there is a site."""
    from fedmap_site.bundles.store import BundleStore

    if store is not None:
        return BundleStore(store)
    settings = settings_if_any(config)
    if settings is None:
        return BundleStore(_users_folder())
    state = settings.site.state
    return BundleStore(settings.bundles.folder or state / "bundles", state / "audit.jsonl")


def refuse_if_withdrawn(shelf: BundleStore, reference: str) -> None:
    """`StateError` where the list that is known here names this NAME-VERSION."""
    from fedmap_site.bundles.records import split_reference

    named, lists = split_reference(reference), shelf.trust.withdrawals()
    if named is None or named[1] is None or lists is None:
        return
    withdrawal = lists.find(named[0], named[1])
    if withdrawal is not None:
        raise StateError(
            f"{reference} was withdrawn: {withdrawal.reason}",
            hint="Do not use it any more. Fetch and install the newest version.",
        )


def settings_if_any(config: Path) -> SiteConfig | None:
    """None only where the file has a usual place and is not there; a file that a person named must be."""
    usual = config in (DEFAULT_CONFIG, MOUNTED_CONFIG)
    return None if usual and _is_absent(config) else load_config(config)


def _is_absent(file: Path) -> bool:
    """Only what is really not there: `load_config` has the words for a file that may not be read."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def now_ms() -> int:
    return int(now().timestamp() * 1000)


# The commands


@bundle_app.command("verify")
def verify_command(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The .fedmap file.")],
    fingerprint: Fingerprint = "",
    withdrawals: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A signed list of withdrawn bundles, as a file.")
    ] = None,
    store: Store = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """May this file be used? Nine numbered steps, fully offline. Changes nothing."""
    from fedmap.bundles.withdrawals import read_withdrawals
    from fedmap.files.durable import read_file

    shelf = open_store(store, config)
    try:
        listed = None
        if withdrawals is not None:
            keys = frozenset({fingerprint}) if fingerprint else shelf.trust.fingerprints()
            listed = read_withdrawals(read_file(withdrawals), keys)
        bundle = shelf.verify(file, now_ms(), fingerprint, listed)
    except FedmapError as error:
        if not as_json:
            raise
        facts = {"code": error.code, "message": error.message, "hint": error.hint}
        print_json({"file": str(file), "verified": False, "error": facts})
        raise typer.Exit(1) from None
    manifest = bundle.manifest
    if as_json:
        print_json(
            {
                "file": str(file),
                "verified": True,
                "name": manifest.name,
                "version": manifest.version,
                "tier": manifest.tier,
                "sha256": bundle.sha256,
                "size": bundle.size,
                "key": bundle.key_fingerprint,
                "expires": day(manifest.expires_unix_ms),
                "steps": [{"number": s.number, "name": s.name, "finding": s.finding} for s in bundle.steps],
            }
        )
        return
    print_text(
        f"{file}: {manifest.title} ({manifest.name}, version {manifest.version}, tier {manifest.tier})"
    )
    print_table(("step", "", ""), [(f"({s.number})", s.name, s.finding) for s in bundle.steps])
    print_text(
        f"SHA-256 {bundle.sha256}",
        "All steps passed: this file may be used."
        if fingerprint
        else "All steps passed, with the key that is trusted here: this file may be used.",
    )


@bundle_app.command("install")
def install_command(
    reference: Annotated[str, typer.Argument(help="A .fedmap file, or the NAME of one that was fetched.")],
    fingerprint: Fingerprint = "",
    trust_new_key: TrustNewKey = False,
    store: Store = None,
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Verify a bundle and put it in force. On any failure, what was installed before stays as it was."""
    if trust_new_key and not fingerprint:
        raise typer.BadParameter("--trust-new-key needs --fingerprint, the new key's as on paper")
    shelf = open_store(store, config)
    installed = install_from(shelf, _file_of(shelf, reference), fingerprint, trust_new_key)
    if as_json:
        print_json({"installed": _facts(shelf, installed), "store": str(shelf.folder)})
        return
    say_installed(shelf, installed)


@bundle_app.command("list")
def list_command(store: Store = None, config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """What is installed, and whether it may be used today."""
    shelf = open_store(store, config)
    installed = shelf.installed()
    if as_json:
        print_json({"store": str(shelf.folder), "bundles": [_facts(shelf, one) for one in installed]})
        return
    if not installed:
        print_text(f"No bundle is installed in {shelf.folder}.")
        return
    rows = []
    for one in installed:
        standing, reason = shelf.standing(one, now_ms())
        state = f"{standing}: {reason}" if reason else standing
        rows.append((one.name, str(one.version), str(one.tier), one.title, day(one.expires_unix_ms), state))
    print_table(("name", "version", "tier", "title", "expires", "state"), rows)


def install_from(shelf: BundleStore, file: Path, fingerprint: str, trust_new_key: bool) -> Installed:
    """Install a file; one that was fetched into the store is then not needed a second time."""
    installed = shelf.install(file, fingerprint, now_ms(), trust_new_key=trust_new_key)
    if file.parent == shelf.downloads:
        file.unlink(missing_ok=True)
    return installed


def say_installed(shelf: BundleStore, installed: Installed) -> None:
    print_text(
        f"Installed {installed.name} version {installed.version}: {installed.title}.",
        f"It lies in {shelf.folder} and may be used until {day(installed.expires_unix_ms)}.",
        f"Next: fedmap-site bundle card {installed.name}",
    )


def _file_of(shelf: BundleStore, reference: str) -> Path:
    """The file itself, or the newest one of that name among the fetched."""
    from fedmap.errors import NotFoundError
    from fedmap_site.bundles.records import SUFFIX, split_reference

    named = split_reference(reference)
    if named is None or Path(reference).is_file():
        return Path(reference)
    found = []
    for path in shelf.downloads.glob(f"*{SUFFIX}"):
        split = split_reference(path.name[: -len(SUFFIX)])
        if split is not None and split[0] == named[0] and named[1] in (None, split[1]):
            found.append((split[1] or 0, path))
    if not found:
        raise NotFoundError(
            f"{reference} was not fetched, and there is no file of that name",
            hint=f"Give the path of the file, or run `fedmap-site bundle fetch {reference}` first.",
        )
    return max(found)[1]


def _facts(shelf: BundleStore, one: Installed) -> dict[str, JsonValue]:
    standing, reason = shelf.standing(one, now_ms())
    return {
        "name": one.name,
        "version": one.version,
        "tier": one.tier,
        "title": one.title,
        "sha256": one.sha256,
        "size": one.size,
        "key": one.key,
        "expires": day(one.expires_unix_ms),
        "state": standing,
        "reason": reason,
        "file": str(shelf.path_of(one)),
    }


def day(unix_ms: int) -> str:
    return moment(datetime.fromtimestamp(unix_ms / 1000, UTC))


def _users_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "fedmap" / "bundles"
    try:
        return Path.home() / ".local" / "share" / "fedmap" / "bundles"
    except RuntimeError as error:
        raise StateError(
            "this account has no home folder in which bundles could be kept",
            hint=f"Name a folder with --store, or with {STORE_VARIABLE}.",
        ) from error
