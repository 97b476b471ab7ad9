"""The options that commands of `fedmap-site` share, and what they lead to: settings, site, bundle, model.

A clinic needs neither a configuration nor an enrolment: only the file and the fingerprint on paper.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import StateError
from fedmap.process.command_line import Given, moment, say

if TYPE_CHECKING:
    from fedmap.bundles.verification import VerifiedBundle
    from fedmap_site.bundles.records import Installed
    from fedmap_site.bundles.store import BundleStore
    from fedmap_site.config import SiteConfig
    from fedmap_site.link.connection import Connection
    from fedmap_site.predict.rows import ReadyModel
    from fedmap_site.wiring import Site

CONFIG_VARIABLE = "FEDMAP_SITE_CONFIG"
DEFAULT_CONFIG = Path("site.toml")
MOUNTED_CONFIG = Path("/etc/fedmap/site.toml")
"""Where the container's image, by FEDMAP_SITE_CONFIG, and the systemd unit look for it."""

Approver = Annotated[str, typer.Option(help="Who decides: a person's name, for the record.")]


@dataclass(frozen=True)
class Here(Given):
    """What every command is given."""

    config: Annotated[
        Path,
        typer.Option(
            "--config",
            envvar=CONFIG_VARIABLE,
            readable=False,  # asked by `read_config`, which can say whose the file is
            help="The site's configuration file (TOML).",
        ),
    ] = DEFAULT_CONFIG

    def settings(self) -> SiteConfig:
        """The configuration, or a ConfigError with every fault."""
        from fedmap.process.settings import read_config
        from fedmap_site.config import NO_CONFIG, SiteConfig

        return read_config(self.config, SiteConfig, NO_CONFIG)

    def site(self) -> Site:
        """The site with everything that its state folder holds."""
        from fedmap_site.wiring import Site

        return Site(self.settings())


def now() -> datetime:
    return datetime.now(UTC)


STORE_VARIABLE = "FEDMAP_BUNDLES"

Reference = Annotated[
    str, typer.Option("--bundle", help="A file, or NAME or NAME-VERSION of an installed bundle.")
]
TrustNewKey = Annotated[
    bool, typer.Option("--trust-new-key", help="Trust this key although another one is trusted here.")
]
BundleOption = Annotated[
    str | None, typer.Option("--bundle", help="A file, or NAME or NAME-VERSION of an installed bundle.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Folder of a personal model, as `fedmap-site personalise` wrote it."),
]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data", exists=True, dir_okay=False, readable=True, help="Patients' file (CSV or Parquet)."
    ),
]


@dataclass(frozen=True)
class AtShelf(Here):
    """For commands that use the store of bundles."""

    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            envvar=STORE_VARIABLE,
            file_okay=False,
            help="Folder of the bundles; default: as configured, or fedmap/bundles among the user's data.",
        ),
    ] = None

    def shelf(self) -> BundleStore:
        """The store. Records go to the site's audit log where there is a site."""
        from fedmap_site.bundles.store import BundleStore

        if self.store is not None:
            return BundleStore(self.store)
        settings = self.settings_if_any()
        if settings is None:
            return BundleStore(_users_folder())
        state = settings.site.state
        return BundleStore(settings.bundles.folder or state / "bundles", state / "audit.jsonl")

    def settings_if_any(self) -> SiteConfig | None:
        """None only where the file has a usual place and is not there; a file that a person named must be."""
        usual = self.config in (DEFAULT_CONFIG, MOUNTED_CONFIG)
        return None if usual and _is_absent(self.config) else self.settings()


@dataclass(frozen=True)
class Trusting(AtShelf):
    """For commands that verify a bundle, under the keys that are trusted here or one on paper."""

    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="Of the federation's release key, as on paper.")
    ] = ""

    def bundle(self, reference: str) -> VerifiedBundle:
        """A file or an installed bundle; verified now."""
        return self.shelf().open(reference, now_ms(), self.fingerprint)

    def model(self, bundle: str | None, folder: Path | None) -> ReadyModel:
        """By --bundle or by --model: verified, not expired, not withdrawn. Both or neither is wrong usage."""
        if (bundle is None) == (folder is None):
            raise typer.BadParameter("give either --bundle or --model")
        if bundle is not None:
            from fedmap_site.predict.rows import shared_model

            return shared_model(self.bundle(bundle))
        assert folder is not None
        from fedmap_site.personalise.model import load_personal

        ready = load_personal(folder)
        ready.refuse_if_expired(now_ms())
        reason = _withdrawn(self.shelf(), ready.name)
        if reason is not None:
            raise StateError(
                f"the bundle behind this model was withdrawn: {ready.name} ({reason})",
                hint="Install the newest bundle of the study and fine-tune again.",
            )
        return ready


def refuse_if_withdrawn(shelf: BundleStore, reference: str) -> None:
    """`StateError` where the list that is known here names this NAME-VERSION."""
    reason = _withdrawn(shelf, reference)
    if reason is not None:
        raise StateError(
            f"{reference} was withdrawn: {reason}",
            hint="Do not use it any more. Fetch and install the newest version.",
        )


def _withdrawn(shelf: BundleStore, reference: str) -> str | None:
    name, version = split_named(reference)
    listed = shelf.trust.withdrawals()
    found = None if listed is None or version is None else listed.find(name, version)
    return None if found is None else found.reason


def install_from(shelf: BundleStore, file: Path, fingerprint: str, trust_new_key: bool) -> Installed:
    """Install a file; one that was fetched into the store is then not needed a second time."""
    installed = shelf.install(file, fingerprint, now_ms(), trust_new_key=trust_new_key)
    if file.parent == shelf.downloads:
        file.unlink(missing_ok=True)
    return installed


def installed_lines(shelf: BundleStore, installed: Installed) -> tuple[str, ...]:
    return (
        f"Installed {installed.name} version {installed.version}: {installed.title}.",
        f"It lies in {shelf.folder} and may be used until {moment(installed.expires_unix_ms)}.",
        f"Next: fedmap-site bundle card {installed.name}",
    )


def pin_release_key(shelf: BundleStore, connection: Connection) -> str:
    """Trust the key that the aggregator names at first contact; another one later is an error.

    The fingerprint, or an empty text where the aggregator has no release key yet.
    """
    from fedmap.trust.signing import shown_fingerprint
    from fedmap_site.wiring import software_version

    announced = connection.hello(software_version()).release_key_fingerprint
    if not announced:
        return ""
    shelf.pin_key(announced, "the aggregator, at first contact", now_ms())
    return shown_fingerprint(announced)


def split_named(reference: str) -> tuple[str, int | None]:
    """NAME or NAME-VERSION in its parts."""
    from fedmap.bundles.manifest import split_reference

    found = split_reference(reference)
    if found is None:
        raise typer.BadParameter(f"{reference!r} is not NAME or NAME-VERSION, such as uci-heart-t2-1")
    return found


def now_ms() -> int:
    return int(now().timestamp() * 1000)


@contextmanager
def progress(words: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, told the share that is done; nothing elsewhere."""
    if not say.is_terminal:
        yield lambda _share: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=say, transient=True) as bar:
        task = bar.add_task(words, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _is_absent(file: Path) -> bool:
    """Only what is really not there: `settings` has the words for a file that may not be read."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


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
