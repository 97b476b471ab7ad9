"""The file that a backup is: a tar of the state folder's files and the database's rows, with a manifest and
its digest last.

Reading trusts nothing: every member is a plain file at a plain path that the manifest lists, with its size
and digest, and none is missing; anything else is an `IntegrityError`, before a byte of it is used. The
archive is not encrypted and not signed: whoever keeps it has to do the first, and its own digest is in the
audit log. What goes into it is `backup`, putting it back is `restore`.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Literal

from annotated_types import Ge
from pydantic import ValidationError

from fedmap.errors import IncompatibleError, IntegrityError
from fedmap.files.digests import is_digest, sha256_hex
from fedmap.files.durable import storage_error
from fedmap.process.settings import Section

FORMAT = 1
SUFFIX = ".backup"
MANIFEST, DATABASE, CONFIG, STATE = "manifest.json", "database.jsonl", "aggregator.toml", "state/"
CHECKSUM = "manifest.sha256"
_MOST_MANIFEST = 256 << 20
_PIECE = 1 << 20
_DAMAGE = (tarfile.TarError, EOFError, ValueError)


class FileEntry(Section):
    """One file of the archive."""

    sha256: str
    size: Annotated[int, Ge(0)]
    mode: Annotated[int, Ge(0)]


class BackupManifest(Section):
    """What the archive holds, and of which moment it is."""

    format: Literal[1] = 1
    made_unix_ms: int
    software_version: str
    address: str
    database: str
    """SQLite or PostgreSQL; it can be restored into either."""
    schema_revision: str
    """Empty: the aggregator had never been started."""
    tables: Mapping[str, int]
    audit_entries: int
    audit_head: str
    with_keys: bool
    left_out: tuple[str, ...] = ()
    """Private keys of the state folder that are not in the archive."""
    outside: tuple[str, ...] = ()
    """Files that the configuration names outside the state folder: they are not in the archive."""
    files: Mapping[str, FileEntry]


class Member:
    """One member while the archive is read: its bytes pass once, and are digested on the way."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.name = name
        self.size = 0
        self._stream = stream
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def read(self, count: int = -1, /) -> bytes:
        return self._seen(self._stream.read(count))

    def pieces(self) -> Iterator[bytes]:
        while piece := self.read(_PIECE):
            yield piece

    def lines(self) -> Iterator[bytes]:
        yield from map(self._seen, self._stream)

    def _seen(self, data: bytes) -> bytes:
        self._hash.update(data)
        self.size += len(data)
        return data


def verify_archive(path: Path) -> BackupManifest:
    """The manifest of an archive that is whole; IntegrityError with the first fault otherwise."""
    found: dict[str, tuple[int, str]] = {}
    text = checksum = b""
    with members(path) as archive:
        for member in archive:
            if checksum:
                raise _damaged(path, "something follows its manifest")
            if member.name == MANIFEST:
                text = b"".join(_limited(path, member))
            elif member.name == CHECKSUM:
                checksum = b"".join(_limited(path, member))
            else:
                for _ in member.pieces():
                    pass
                found[member.name] = (member.size, member.digest)
    if not text or checksum != sha256_hex(text).encode():
        raise _damaged(path, "its manifest is missing or damaged: it was cut short, or is no backup at all")
    manifest = _parsed(path, text)
    listed = {name: (entry.size, entry.sha256) for name, entry in manifest.files.items()}
    for name in sorted(listed.keys() | found.keys()):
        if listed.get(name) != found.get(name):
            what = "is missing" if name not in found else "is not what the manifest lists"
            raise _damaged(path, f"{name} {what}")
    for name in listed:
        blob = PurePosixPath(name).name
        if name.startswith(f"{STATE}blobs/kept/") and is_digest(blob) and listed[name][1] != blob:
            raise _damaged(path, f"{name} does not have the digest that it is named by")
    return manifest


@contextmanager
def members(path: Path) -> Iterator[Iterator[Member]]:
    """The members in their order. Only plain files at plain paths are given."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|") as archive:
            yield _members(path, archive)
    except _DAMAGE as error:
        raise _damaged(path, "it is cut short, or no backup at all") from error
    except OSError as error:
        raise storage_error(error, path) from error


def add_bytes(archive: tarfile.TarFile, name: str, stream: IO[bytes], size: int, mode: int) -> FileEntry:
    """Adds `size` bytes of a stream under a name; its entry for the manifest."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    member = Member(name, stream)
    archive.addfile(info, member)
    return FileEntry(sha256=member.digest, size=size, mode=mode)


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[Member]:
    seen: set[str] = set()
    for info in archive:
        plain = PurePosixPath(info.name)
        if info.issparse():  # a few bytes that are read as any number of zeros
            raise _damaged(path, f"{info.name} has holes, which no file of a backup has")
        if not info.isreg() or plain.is_absolute() or ".." in plain.parts or str(plain) != info.name:
            raise _damaged(path, "it holds something that is not a plain file")
        if info.name in seen:
            raise _damaged(path, f"it holds {info.name} twice")
        seen.add(info.name)
        stream = archive.extractfile(info)
        if stream is None:
            raise _damaged(path, f"{info.name} cannot be read")
        yield Member(info.name, stream)


def _limited(path: Path, member: Member) -> Iterator[bytes]:
    for piece in member.pieces():
        if member.size > _MOST_MANIFEST:
            raise _damaged(path, "its manifest is too large")
        yield piece


def _parsed(path: Path, data: bytes) -> BackupManifest:
    try:
        return BackupManifest.model_validate_json(data, strict=False)
    except ValidationError as error:
        if any(fault["loc"] == ("format",) for fault in error.errors()):
            raise IncompatibleError(
                f"{path.name} is a backup in another format than {FORMAT}, the one that this software reads",
                hint="Install the version of fedmap that made it, or a newer one.",
            ) from None
        raise _damaged(path, "its manifest cannot be read") from None


def _damaged(path: Path, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{path.name} cannot be used as a backup: {reason}", hint="Nothing was changed. Use another backup."
    )
