"""Tensors on disk, each in a file named by its SHA-256: the same bytes are one file, whole or absent.

Layout: kept/ab/ab12…, incoming/ for what is still arriving, quarantine/ for what the gate refused. A blob is
on the disk before the row that names it is written; a crash in between leaves a file that no row names, which
does no harm. Who may read or send what is not decided here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from fedmap.errors import IntegrityError, NotFoundError
from fedmap.files.digests import file_sha256, is_digest, sha256_hex
from fedmap.files.durable import (
    TEMPORARY,
    DurableWriter,
    make_folder,
    remove_leftovers,
    storage_error,
    storage_errors,
    sync_folder,
)

_QUARANTINE_BYTES = 4 << 30


class BlobStore:
    """One folder of blobs. Several processes may use it at once; only one of them cleans it."""

    def __init__(self, folder: Path, quarantine_bytes: int = _QUARANTINE_BYTES) -> None:
        self._kept = folder / "kept"
        self._incoming = folder / "incoming"
        self._quarantine = folder / "quarantine"
        self._quarantine_bytes = quarantine_bytes
        for path in (self._kept, self._incoming, self._quarantine):
            make_folder(path)

    def clean(self) -> int:
        """Removes what a crash left half written; for the start of the service, when nobody else writes."""
        return remove_leftovers(self._incoming)

    def path(self, digest: str) -> Path:
        """Where a blob is or would be. What is no digest names no blob."""
        if not is_digest(digest):
            raise NotFoundError(
                "no blob has this name", hint="A blob is named by a SHA-256 in lower-case hex."
            )
        return self._kept / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return _is_there(self.path(digest))

    def existing(self, digest: str) -> Path:
        """The path of a blob that is there; NotFoundError otherwise."""
        path = self.path(digest)
        if not _is_there(path):
            raise NotFoundError(f"no blob {digest[:12]}… is kept here", hint="Check the digest.")
        return path

    def receive(self, expected: int = 0) -> DurableWriter:
        """For bytes that arrive in pieces: write them, then `keep` or `quarantine` inside its block."""
        return DurableWriter(self._incoming, expected=expected)

    def keep(self, writer: DurableWriter, digest: str) -> Path:
        """Makes what was received a blob, if it is what was announced; IntegrityError otherwise."""
        if writer.digest != digest:
            raise IntegrityError(
                f"the bytes received do not have the digest {digest[:12]}… that was announced",
                hint="Send the file again; if it goes on, look for a proxy that changes traffic.",
            )
        path = self._place(digest)
        writer.commit(path)
        return path

    def put(self, data: bytes) -> str:
        """Keeps bytes in memory; returns their digest."""
        digest = sha256_hex(data)
        with self.receive() as writer:
            writer.write(data)
            writer.commit(self._place(digest))
        return digest

    def draft(self) -> Path:
        """A fresh path for a library that writes files by itself; give it to `adopt` afterwards."""
        return self._incoming / f"{TEMPORARY}{secrets.token_hex(8)}"

    def adopt(self, draft: Path) -> str:
        """Makes a finished draft a blob without copying it; returns its digest."""
        digest = file_sha256(draft)
        path = self._place(digest)
        with storage_errors(path):
            descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            draft.chmod(0o600)
            draft.replace(path)
            sync_folder(path.parent)
        return digest

    def quarantine(self, writer: DurableWriter) -> Path:
        """Puts away what the gate refused, for a person to look at; the oldest go when room is short."""
        path = self._quarantine / writer.digest
        writer.commit(path)
        self._make_room(path)
        return path

    def quarantined(self, digest: str) -> Path:
        """Where refused bytes of this digest are or were."""
        return self._quarantine / self.path(digest).name

    def unnamed(self, named: frozenset[str], before: float) -> dict[str, int]:
        """Size by digest of blobs that no row names, written before that time (unix s): a crash left them."""
        found = {}
        with storage_errors(self._kept):
            for path in self._kept.glob("*/*"):
                if path.name not in named and is_digest(path.name) and path.stat().st_mtime < before:
                    found[path.name] = path.stat().st_size
        return found

    def size(self, path: Path) -> int | None:
        """Bytes of a blob or of a file in quarantine; None where it is gone."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, path) from error

    def delete(self, paths: Iterable[Path]) -> None:
        """For who made sure, in a transaction that still holds, that no row names them."""
        folders = set()
        for path in paths:
            with storage_errors(path):
                path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            if folder.is_dir():
                sync_folder(folder)

    def verify(self, digest: str) -> None:
        """Reads a blob again; IntegrityError where the disk has changed it."""
        path = self.existing(digest)
        if file_sha256(path) != digest:
            raise IntegrityError(
                f"the blob {digest[:12]}… has changed on the disk",
                hint=f"Restore {path} from a backup, and check the disk.",
            )

    def _place(self, digest: str) -> Path:
        path = self.path(digest)
        make_folder(path.parent)
        return path

    def _make_room(self, newest: Path) -> None:
        with storage_errors(self._quarantine):
            found = [(status.st_mtime_ns, status.st_size, path) for path, status in self._quarantined()]
            total = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if total <= self._quarantine_bytes:
                    break
                if path != newest:
                    path.unlink(missing_ok=True)
                    total -= size

    def _quarantined(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._quarantine.iterdir():
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:  # another thread made room meanwhile
                continue
        return found


def _is_there(path: Path) -> bool:
    """An unreadable disk is an error, not an absent file."""
    with storage_errors(path):
        return path.is_file()
