"""Installed bundles for clinics inside the hospital's own network: who may see them, and what they get.

Only what is installed and sound is handed on, and only to addresses on the access list; an empty list lets
nobody in. The pages and the HTTPS server are `fedmap.web`. Bundles under one release key are served: the page
says one fingerprint, and a clinic compares it with paper.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmap.bundles.verification import VerifiedBundle
from fedmap.errors import ConfigError, FedmapError, NotAllowedError, NotFoundError, StateError
from fedmap.files.durable import storage_errors
from fedmap.process.log import get_logger
from fedmap.trust.signing import same_fingerprint, shown_fingerprint
from fedmap.web.bundle_app import make_bundle_app
from fedmap.web.catalogue import Access, Entry, Visitor
from fedmap.web.https_server import HttpsServer
from fedmap_site.bundles.records import Installed
from fedmap_site.bundles.store import BundleStore
from fedmap_site.config import ServeSection

Clock = Callable[[], int]  # unix milliseconds
_ASK_FOR_ACCESS = "Ask the hospital's IT to add your network under [bundles.serve] allow."
_NEWER = "Ask the hospital's IT for the newest version."


@dataclass(frozen=True)
class _Seen:
    """A verified file, as it was when it was read."""

    inode: int
    size: int
    changed_ns: int
    bundle: VerifiedBundle


class StoreCatalogue:
    """The bundles of a store for the visitors of a page. Its methods may be called from several threads."""

    def __init__(self, store: BundleStore, allow: Sequence[str], clock: Clock) -> None:
        self._store = store
        self._allow = tuple(map(ipaddress.ip_network, allow))
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def allowed(self, visitor: Visitor) -> Access:
        """By address, as the socket says it."""
        try:
            address = ipaddress.ip_address(visitor.address)
        except ValueError:
            address = None
        if address is not None and any(address in network for network in self._allow):
            return Access(listing=True)
        return Access(
            False, "Your computer's address is not on this hospital's access list.", hint=_ASK_FOR_ACCESS
        )

    def entries(self, visitor: Visitor) -> tuple[Entry, ...]:
        """What is installed, newest versions first; withdrawn and expired ones to look at only."""
        self._admit(visitor)
        return tuple(self._entry(entry, bundle) for entry, bundle in self._served())

    def open(self, visitor: Visitor, file_name: str) -> Path:
        """The installed file, if it may be used today."""
        self._admit(visitor)
        for entry, bundle in self._served():
            if entry.file_name == file_name:
                standing, reason = self._store.standing(entry, self._clock())
                if standing == "withdrawn":
                    raise StateError(f"{file_name} was withdrawn: {reason}", hint=_NEWER)
                if standing == "expired":
                    raise StateError(f"{file_name} has expired", hint=_NEWER)
                return bundle.path
        raise NotFoundError(
            "There is no such bundle here.", hint="The first page of this server lists what there is."
        )

    def finished(self, visitor: Visitor, file_name: str) -> None:
        """Record to whom a bundle went."""
        self._store.record_served(file_name, visitor.address)

    def withdrawals(self) -> bytes | None:
        """The list of the key whose bundles are served."""
        key = self._key()
        return self._store.trust.signed_list(key) if key else None

    def key_fingerprint(self) -> str:
        key = self._key()
        return shown_fingerprint(key) if key else ""

    def not_served(self) -> tuple[str, ...]:
        """Installed bundles that nobody gets, each with the reason."""
        served = {entry.file_name for entry, _ in self._served()}
        return tuple(
            f"{entry.file_name}: {self._why_not(entry)}"
            for entry in self._store.installed()
            if entry.file_name not in served
        )

    def _admit(self, visitor: Visitor) -> None:
        access = self.allowed(visitor)
        if not access.listing:
            raise NotAllowedError(access.reason, hint=access.hint)
        if visitor.token:
            raise NotFoundError(
                "This server makes no download links.",
                hint="Open its first page: it lists what there is to download.",
            )

    def _entry(self, entry: Installed, bundle: VerifiedBundle) -> Entry:
        standing, reason = self._store.standing(entry, self._clock())
        return Entry(bundle.manifest, bundle.sha256, bundle.size, standing == "ready", reason)

    def _served(self) -> list[tuple[Installed, VerifiedBundle]]:
        key = self._key()
        found = []
        for entry in reversed(self._store.installed()):
            if not same_fingerprint(entry.key, key):
                continue
            try:
                found.append((entry, self._sound(entry)))
            except FedmapError as error:  # a damaged one must not take the others off the page
                get_logger().warning("bundle_not_served", entry=entry.file_name, code=error.code)
        return sorted(found, key=lambda pair: pair[0].name)

    def _sound(self, entry: Installed) -> VerifiedBundle:
        """Verified once for as long as the file does not change."""
        path = self._store.path_of(entry)
        with storage_errors(path):
            found = path.stat()
        now = (found.st_ino, found.st_size, found.st_mtime_ns)
        with self._lock:
            seen = self._seen.get(entry.file_name)
            if seen is None or (seen.inode, seen.size, seen.changed_ns) != now:
                seen = _Seen(*now, self._store.sound(entry))
                self._seen[entry.file_name] = seen
            return seen.bundle

    def _why_not(self, entry: Installed) -> str:
        if not same_fingerprint(entry.key, self._key()):
            return "it is signed by another key than the bundle that was installed last"
        try:
            self._sound(entry)
        except FedmapError as error:
            return error.message
        return "it was just installed"

    def _key(self) -> str:
        """The key of what was installed last; that of the trust where nothing is."""
        installed = self._store.installed()
        if installed:
            return max(installed, key=lambda entry: entry.installed_unix_ms).key
        keys = self._store.trust.trusted()
        return keys[0].fingerprint if keys else ""


def make_server(catalogue: StoreCatalogue, section: ServeSection, heading: str) -> HttpsServer:
    """The HTTPS server as configured; everything that is missing is told at once."""
    problems = []
    if not section.listen:
        problems.append("bundles.serve.listen: no address is given")
    if section.certificate is None or section.key is None:
        problems.append("bundles.serve.certificate and bundles.serve.key: both are needed")
    if not section.allow:
        problems.append("bundles.serve.allow: the access list is empty, so nobody could get anything")
    if problems or section.certificate is None or section.key is None:
        raise ConfigError(
            "serve-bundles",
            tuple(problems),
            hint="Name the address, a certificate of your own PKI with its key, and the clinics' networks in "
            'site.toml under [bundles.serve], such as allow = ["10.1.0.0/16"].',
        )
    app = make_bundle_app(catalogue, heading)
    return HttpsServer(section.listen, app, (section.certificate, section.key))
