"""The site's audit log: JSON lines on disk, each holding the hash of the one before.

Every append is locked, checked against the last line and made durable before the caller goes on. A line that
a power cut tore is moved aside and its repair is recorded; any other change is found by `verify`. The chain
itself is `fedmap.trust.audit`; what is worth an entry is the caller's to say. No patient value is ever in it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import IntegrityError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import storage_errors, sync_folder, write_durably
from fedmap.trust.audit import AuditEntry, entry_hash, make_entry, parse_entry, verify_chain

AGENT = "agent"
"""The actor of what the agent does by itself."""
_BLOCK = 64 << 10
_MOST_LINE = 1 << 20

Clock = Callable[[], int]  # unix milliseconds


@dataclass(frozen=True)
class VerifiedLog:
    """A sound log. `torn_bytes` is an unfinished last line, which the next append moves aside."""

    entries: int
    head: str
    torn_bytes: int


class AuditLog:
    """One file. Several processes (agent, command line) and threads may append."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def append(
        self, action: str, subject: str, detail: Mapping[str, str] | None = None, actor: str = AGENT
    ) -> AuditEntry:
        """Record something; durable when it returns."""
        with self._locked() as descriptor:
            last = self._repaired(descriptor)
            return self._write(descriptor, last, actor, action, subject, detail or {})

    def entries(self) -> Iterator[AuditEntry]:
        """Every finished line, unchecked."""
        lines, _ = self._lines()
        return map(parse_entry, lines)

    def verify(self) -> VerifiedLog:
        """Check the whole chain; `IntegrityError` names the first entry that does not fit."""
        lines, torn = self._lines()
        head = verify_chain(parse_entry(line) for line in lines)
        return VerifiedLog(len(lines), head, torn)

    def _lines(self) -> tuple[list[str], int]:
        with storage_errors(self._path):
            data = self._path.read_bytes() if self._path.exists() else b""
        whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        try:
            return whole.decode("ascii").splitlines(), len(torn)
        except UnicodeDecodeError as error:
            raise _unreadable(self._path) from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with storage_errors(self._path):
            new = not self._path.exists()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if new:
                    sync_folder(self._path.parent)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)

    def _repaired(self, descriptor: int) -> AuditEntry | None:
        """The last entry, after a torn line behind it was moved aside and its repair recorded."""
        size = os.fstat(descriptor).st_size
        tail = _tail(descriptor, size)
        torn = tail[tail.rfind(b"\n") + 1 :]
        lines = tail[: len(tail) - len(torn)].splitlines()
        last = self._checked(lines[-1]) if lines else None
        if not torn:
            return last
        digest = sha256_hex(torn)
        write_durably(self._path.with_name(f"{self._path.name}.torn-{digest[:16]}"), torn)
        os.ftruncate(descriptor, size - len(torn))
        os.fsync(descriptor)
        detail = {"bytes": str(len(torn)), "digest": digest}
        return self._write(descriptor, last, AGENT, "audit.repaired", "torn last line", detail)

    def _checked(self, line: bytes) -> AuditEntry:
        """Nothing is built on an entry that was changed."""
        try:
            entry = parse_entry(line.decode("ascii"))
        except UnicodeDecodeError as error:
            raise _unreadable(self._path) from error
        if entry.hash != entry_hash(entry):
            raise _unreadable(self._path)
        return entry

    def _write(
        self,
        descriptor: int,
        last: AuditEntry | None,
        actor: str,
        action: str,
        subject: str,
        detail: Mapping[str, str],
    ) -> AuditEntry:
        entry = make_entry(
            last, at_unix_ms=self._clock(), actor=actor, action=action, subject=subject, detail=detail
        )
        rest = memoryview(f"{entry.to_json()}\n".encode("ascii"))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        return entry


def _tail(descriptor: int, size: int) -> bytes:
    """The end of the file: at least its last finished line and all that follows it."""
    tail = b""
    while len(tail) < size and tail.count(b"\n") < 2:
        length = min(_BLOCK, size - len(tail))
        tail = os.pread(descriptor, length, size - len(tail) - length) + tail
        if len(tail) > _MOST_LINE * 2:
            break
    if len(tail) == size:
        return tail
    return tail[tail.find(b"\n") + 1 :]  # without the part of a line that it may begin with


def _unreadable(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path}: the last entry of the audit log was changed",
        hint="Keep the file as it is and compare it with a backup; `fedmap-site audit verify` says where.",
    )
