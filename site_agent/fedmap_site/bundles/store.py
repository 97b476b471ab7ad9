"""The bundles of this site or clinic on disk: what is installed, and what is believed. Needs no network.

    lock  audit.jsonl  trust.json  withdrawals/  downloads/
    bundles/NAME/{record.json, VERSION.fedmap}

A bundle is installed when the record of its name says so, and the record is written last: a process that is
killed at any point leaves what was installed before, whole. Every use verifies again. Nothing is removed but
by `remove`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fedmap.bundles.manifest import SUFFIX, split_reference
from fedmap.bundles.verification import Trust, VerifiedBundle, against_installed, verify_bundle
from fedmap.bundles.withdrawals import Withdrawals
from fedmap.errors import ConflictError, IntegrityError, NotFoundError, StateError
from fedmap.files.digests import file_sha256
from fedmap.files.durable import DurableWriter, make_folder, remove_leftovers, storage_errors, waiting_lock
from fedmap.names import shown
from fedmap.trust.signing import shown_fingerprint
from fedmap_site.bundles.records import Installed, Records, facts_of
from fedmap_site.bundles.trust import BundleTrust, together
from fedmap_site.state.audit_log import AGENT, AuditLog

Standing = Literal["ready", "expired", "withdrawn"]
PERSON = "command line"
"""The actor of what somebody asked for."""
_BLOCK = 1 << 20


class BundleStore:
    """One folder. Several processes may use it; whoever writes waits for the others."""

    def __init__(self, folder: Path, audit_path: Path | None = None) -> None:
        """`audit_path`: the site's own log, where there is a site; else the store keeps one."""
        self.folder = folder
        self.downloads = folder / "downloads"
        self.trust = BundleTrust(folder)
        self._records = Records(folder / "bundles")
        self._audit_path = audit_path or folder / "audit.jsonl"
        self._audit = AuditLog(self._audit_path, lambda: time.time_ns() // 1_000_000)

    # What is believed

    def pin_key(self, fingerprint: str, source: str, now_unix_ms: int, *, another: bool = False) -> bool:
        """Trust a release key from now on; False where it was trusted already. `another`: a second one."""
        with self._alone():
            return self._pin(fingerprint, source, now_unix_ms, another)

    def forget_key(self, fingerprint: str) -> None:
        """Trust a release key no longer."""
        with self._alone():
            self.trust.forget(fingerprint)
            self._audit.append("bundle.key_forgotten", shown_fingerprint(fingerprint), actor=PERSON)

    def accept_withdrawals(self, signed_list: bytes) -> Withdrawals:
        """Keep a signed list of withdrawn bundles; one that is older than what is known is refused."""
        with self._alone():
            fresh, is_new = self.trust.accept_list(signed_list)
            if is_new:
                detail = {"withdrawn": str(len(fresh.entries))}
                self._audit.append("bundle.withdrawals_received", str(fresh.serial), detail)
            return fresh

    # Bundles

    def verify(
        self,
        path: Path,
        now_unix_ms: int,
        fingerprint: str = "",
        withdrawals: Withdrawals | None = None,
    ) -> VerifiedBundle:
        """Check a file with the key on paper, or the pinned ones, and against all that was installed.

        `withdrawals` counts beside the lists that are known here.
        """
        keys = frozenset({fingerprint}) if fingerprint else self.trust.fingerprints()
        return self._verified(path, keys, now_unix_ms, withdrawals)

    def install(
        self, path: Path, fingerprint: str | None, now_unix_ms: int, *, trust_new_key: bool = False
    ) -> Installed:
        """Verify a file and put a copy of it in force. On any failure all is as it was before."""
        given = fingerprint or ""
        with self._alone():
            keys = frozenset({given}) if given and trust_new_key else self.trust.fingerprints(given)
            bundle = self._verified(path, keys, now_unix_ms)  # before a byte is copied
            with self._copied(bundle) as writer:
                copy = self._verified(writer.finish(), keys, now_unix_ms, label=path.name)
                if copy.manifest != bundle.manifest:
                    raise _changed(path)
                fresh = facts_of(copy, now_unix_ms)  # of the bytes that stay, whatever became of the file
                record = self._records.read(fresh.name)
                before = record.find(fresh.version)
                if before is not None and before.sha256 != fresh.sha256:
                    raise ConflictError(
                        f"another file was installed before as {fresh.name} version {fresh.version}",
                        hint="A version never changes its content. Ask the operator which file is right.",
                    )
                if before is None or not self._is_whole(before):
                    writer.commit(self.path_of(fresh))
            if given:
                self._pin(given, "on paper", now_unix_ms, trust_new_key)
            self._records.write(fresh.name, record.with_entry(fresh))
            detail = {"digest": fresh.sha256, "key": fresh.key}
            self._audit.append("bundle.installed", fresh.reference, detail, PERSON)
            return fresh

    def open(self, reference: str | Path, now_unix_ms: int, fingerprint: str = "") -> VerifiedBundle:
        """A verified bundle: of a file, of NAME (its newest installed version), or of NAME-VERSION.

        An older version than the highest ever installed opens only by its number, and only from here.
        """
        keys = self.trust.fingerprints(fingerprint)
        named = split_reference(str(reference))
        if isinstance(reference, Path) or named is None or Path(reference).is_file():
            return self._verified(Path(reference), keys, now_unix_ms)
        entry = self.find(*named)
        if named[1] is None and entry.version < self._records.read(entry.name).highest:
            raise StateError(
                f"the newest version of {entry.name} was removed here, and an older one is left",
                hint=f"Install the newest bundle; or name the older one, {entry.reference}, if it is meant.",
            )
        return self._as_installed(entry, Trust(keys, self.trust.withdrawals()), now_unix_ms)

    def sound(self, entry: Installed) -> VerifiedBundle:
        """The bundle as on the day it was installed, every byte checked. Whether it stands is not asked."""
        return self._as_installed(entry, Trust(self.trust.fingerprints()), entry.installed_unix_ms)

    def installed(self) -> tuple[Installed, ...]:
        """All that is installed, by name and version."""
        return self._records.installed()

    def find(self, name: str, version: int | None = None) -> Installed:
        """One installed version, by default the newest; `NotFoundError` where there is none."""
        fitting = [one for one in self.installed() if one.name == name and version in (None, one.version)]
        if not fitting:
            wanted = name if version is None else f"{name}-{version}"
            raise NotFoundError(
                f"the bundle {shown(wanted)} is not installed",
                hint="`fedmap-site bundle list` shows what is; `fedmap-site bundle install FILE` adds one.",
            )
        return fitting[-1]

    def standing(self, entry: Installed, now_unix_ms: int) -> tuple[Standing, str]:
        """Whether an installed version may be used, and where it was withdrawn, why."""
        lists = self.trust.withdrawals()
        withdrawal = lists.find(entry.name, entry.version) if lists is not None else None
        if withdrawal is not None:
            return "withdrawn", withdrawal.reason
        return ("expired", "") if entry.expires_unix_ms <= now_unix_ms else ("ready", "")

    def path_of(self, entry: Installed) -> Path:
        return self.folder / "bundles" / entry.name / f"{entry.version}{SUFFIX}"

    def remove(self, name: str, version: int | None = None) -> Installed:
        """Delete one version; that it was here stays known."""
        with self._alone():
            entry = self.find(name, version)
            gone = entry.model_copy(update={"removed": True})
            self._records.write(name, self._records.read(name).with_entry(gone))
            with storage_errors(self.path_of(entry)):
                self.path_of(entry).unlink(missing_ok=True)
            self._audit.append("bundle.removed", entry.reference, {"digest": entry.sha256}, PERSON)
            return entry

    def record_served(self, file_name: str, address: str) -> None:
        """That a bundle was handed on, and to which address."""
        with self._alone():
            self._audit.append("bundle.served", file_name, {"address": address})

    def _verified(
        self,
        path: Path,
        keys: frozenset[str],
        now_unix_ms: int,
        withdrawals: Withdrawals | None = None,
        label: str = "",
    ) -> VerifiedBundle:
        trust = Trust(keys, together(self.trust.withdrawals(), withdrawals))
        bundle = verify_bundle(path, trust, now_unix_ms, label=label)
        return against_installed(bundle, self._records.read(bundle.manifest.name).highest or None)

    def _as_installed(self, entry: Installed, trust: Trust, now_unix_ms: int) -> VerifiedBundle:
        path = self.path_of(entry)
        bundle = verify_bundle(path, trust, now_unix_ms, label=entry.file_name)
        named = (bundle.manifest.name, bundle.manifest.version)
        if bundle.sha256 != entry.sha256 or named != (entry.name, entry.version):
            raise IntegrityError(
                f"{path}: it is not the file that was installed as {entry.file_name}",
                hint=f"Remove it with `fedmap-site bundle remove {entry.reference}`, and install the bundle "
                "again.",
            )
        return bundle

    @contextmanager
    def _copied(self, bundle: VerifiedBundle) -> Iterator[DurableWriter]:
        """A copy in the store, without a name yet: nobody else can exchange it before it is verified."""
        home = self.folder / "bundles" / bundle.manifest.name
        make_folder(home)
        remove_leftovers(home)
        with DurableWriter(home) as writer:
            with storage_errors(bundle.path), bundle.path.open("rb", buffering=0) as source:
                while writer.size <= bundle.size and (block := source.read(_BLOCK)):
                    writer.write(block)
            if writer.size != bundle.size:
                raise _changed(bundle.path)
            yield writer

    def _is_whole(self, entry: Installed) -> bool:
        path = self.path_of(entry)
        return path.is_file() and file_sha256(path) == entry.sha256

    def _pin(self, fingerprint: str, source: str, now_unix_ms: int, another: bool) -> bool:
        fresh = self.trust.pin(fingerprint, source, now_unix_ms, another=another)
        if fresh:
            detail = {"source": source}
            actor = PERSON if source == "on paper" else AGENT
            self._audit.append("bundle.key_trusted", shown_fingerprint(fingerprint), detail, actor)
        return fresh

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time; the others wait, for each is done within seconds."""
        make_folder(self._audit_path.parent)
        with waiting_lock(self.folder / "lock"):
            yield


def _changed(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path}: the file changed while it was installed",
        hint="Nothing was installed. Copy the file to a folder of your own and try again.",
    )
