"""A federation that releases bundles, and a clinic's store: for the tests of `fedmap-site bundle`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedmap.bundles.withdrawals import Withdrawal, Withdrawals, write_withdrawals
from fedmap.trust.audit import AuditEntry
from fedmap.trust.signing import fingerprint, new_release_key, public_key_of
from fedmap_site.bundles.store import BundleStore
from fedmap_site.state.audit_log import AuditLog
from tests.common.bundles.examples import NOW, released, write_example

DAY_MS = 86_400_000


@dataclass
class Releases:
    """One federation's release key, and what it signed. `now` is its clock."""

    folder: Path
    key: bytes = field(default_factory=new_release_key, repr=False)
    now: int = NOW

    @property
    def fingerprint(self) -> str:
        return fingerprint(public_key_of(self.key))

    def bundle(
        self, version: int = 1, tier: Literal[2, 3] = 2, seed: int = 1, days: int = 90, name: str = ""
    ) -> Path:
        """A signed file that ends so many days from now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / (name or f"tiny-t{tier}-{version}.fedmap")
        write_example(
            path,
            self.key,
            tier,
            version,
            released(seed=seed),
            released_unix_ms=self.now - 100 * DAY_MS,
            expires_unix_ms=self.now + days * DAY_MS,
        )
        return path

    def withdraw(self, *versions: int, serial: int = 1, name: str = "tiny-t2") -> bytes:
        """The signed list."""
        entries = tuple(
            Withdrawal(name=name, version=version, reason="it was wrong", at_unix_ms=self.now - 1)
            for version in versions
        )
        return write_withdrawals(
            Withdrawals(serial=serial, issued_unix_ms=self.now, entries=entries), self.key
        )


def entries_of(store: BundleStore) -> list[AuditEntry]:
    """The store's own audit log, its chain checked."""
    log = AuditLog(store.folder / "audit.jsonl", lambda: 0)
    log.verify()
    return list(log.entries())


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder but its lock and its log: what must not change when something is refused."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock", "audit.jsonl")
    }
