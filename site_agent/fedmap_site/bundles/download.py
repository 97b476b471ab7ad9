"""From a source to a whole file: goes on where it stopped before, starts anew where the file has changed.

    FILE.part  what has arrived        FILE.part.json  of which file that is

The source says what it has before each attempt. A cut connection is tried again while it brings bytes; the
finished file must have the announced size, and the announced digest where there is one. Whether it is a good
bundle is `fedmap.bundles.verification`, and how bytes come over HTTPS is `links`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError

from fedmap.bundles.manifest import ARCHIVE, SUFFIX, split_reference
from fedmap.errors import (
    ConflictError,
    IntegrityError,
    LimitError,
    NotFoundError,
    StateError,
    StorageError,
    UnreachableError,
)
from fedmap.files.digests import file_sha256, is_digest
from fedmap.files.durable import make_folder, storage_error, storage_errors, sync_folder, write_durably
from fedmap.names import shown
from fedmap.process.settings import Section

if TYPE_CHECKING:
    from fedmap.contract.v1 import values
    from fedmap_site.link.connection import Connection

TRIES = 5
"""Attempts in a row that bring nothing."""
FIRST_PAUSE = 1.0

Bytes = bytes | memoryview
Progress = Callable[[int, int], None]  # bytes here, bytes in all
Pause = Callable[[float], None]


@dataclass(frozen=True)
class Remote:
    """A file as its source has it now."""

    file_name: str
    size: int
    tag: str
    """Changes with the content."""
    sha256: str = ""
    """Empty where the source does not say."""


class Source(Protocol):
    """Where a bundle comes from. Failures are typed; only `UnreachableError` is tried again."""

    def look(self) -> Remote:
        """What there is now."""

    def read(self, remote: Remote, offset: int) -> tuple[int, Iterator[Bytes]]:
        """Where the bytes begin (the offset, or 0 where the source starts anew), and the bytes."""


class _PartNote(Section):
    tag: str
    size: int


def download(
    source: Source,
    folder: Path,
    progress: Progress = lambda _done, _size: None,
    pause: Pause = time.sleep,
) -> Path:
    """The whole file in `folder` under its own name."""
    make_folder(folder)
    remote, best, left = _checked(source.look()), -1, TRIES
    while True:
        target = folder / remote.file_name
        part = folder / f"{remote.file_name}.part"
        if _is_here(target, remote):
            return target
        try:
            with _held(part) as file:
                have = _resume(file, part, remote)
                progress(have, remote.size)
                if have < remote.size:
                    _receive(source, remote, file, have, progress)
                os.fsync(file.fileno())
            return _finish(part, target, remote)
        except UnreachableError:
            arrived = part.stat().st_size if part.exists() else 0
            left = TRIES if arrived > best else left - 1
            best = max(best, arrived)
            if left <= 0:
                raise
            pause(FIRST_PAUSE * 2 ** (TRIES - left))
            remote = _checked(source.look())


def _checked(remote: Remote) -> Remote:
    """A file name from outside becomes a path only after this."""
    if not remote.file_name.endswith(SUFFIX) or split_reference(remote.file_name[: -len(SUFFIX)]) is None:
        raise IntegrityError(
            f"the source calls its file {shown(remote.file_name)}, which is no bundle's name",
            hint="Check the address, or ask who gave it to you.",
        )
    if not 0 < remote.size <= ARCHIVE.most_bytes:
        raise LimitError(
            f"the source announces {remote.size} bytes for {remote.file_name}",
            hint=f"A bundle has from 1 to {ARCHIVE.most_bytes} bytes. Ask who runs the source.",
        )
    return remote


def _is_here(target: Path, remote: Remote) -> bool:
    """Whether the file was downloaded before; another one of its name is not written over."""
    if not target.exists():
        return False
    if remote.sha256 and file_sha256(target) == remote.sha256:
        return True
    raise ConflictError(
        f"{target} is there already, and it is not known to be the same file",
        hint="Move it away, or choose another folder with --out.",
    )


@contextmanager
def _held(part: Path) -> Iterator[FileIO]:
    """The unfinished file, for this process alone."""
    try:
        with FileIO(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
    except BlockingIOError:
        raise StorageError(
            f"{part}: another process downloads this bundle now", hint="Wait until it is done."
        ) from None
    except OSError as error:
        raise storage_error(error, part) from error


def _resume(file: FileIO, part: Path, remote: Remote) -> int:
    """How many bytes of exactly this file are here; all others are thrown away."""
    have = file.seek(0, os.SEEK_END)
    note = part.with_name(f"{part.name}.json")
    expected = _PartNote(tag=remote.tag, size=remote.size)
    try:
        same = note.exists() and _PartNote.model_validate_json(note.read_bytes()) == expected
    except ValidationError:
        same = False
    if same and remote.tag and have <= remote.size:
        return have
    file.truncate(0)
    write_durably(note, expected.model_dump_json().encode())
    return 0


def _receive(source: Source, remote: Remote, file: FileIO, have: int, progress: Progress) -> None:
    """Append what is missing; never more than was announced."""
    have, blocks = source.read(remote, have)
    file.truncate(have)
    file.seek(have)
    for block in blocks:
        if have + len(block) > remote.size:
            file.truncate(0)
            raise IntegrityError(
                f"the source sent more than the {remote.size} bytes that it announced",
                hint="Try again. If it goes on, tell who runs the source.",
            )
        rest = memoryview(block)
        while rest:  # a disk that is nearly full may take a part of it
            rest = rest[file.write(rest) :]
        have += len(block)
        progress(have, remote.size)
    if have < remote.size:
        raise UnreachableError(
            f"the connection was cut after {have} of {remote.size} bytes",
            hint="Run the command again: it goes on where it stopped.",
        )


def _finish(part: Path, target: Path, remote: Remote) -> Path:
    note = part.with_name(f"{part.name}.json")
    sound = not remote.sha256 or file_sha256(part) == remote.sha256
    with storage_errors(target):
        if sound:
            part.rename(target)
        else:
            part.unlink()
        note.unlink(missing_ok=True)
        sync_folder(target.parent)
    if not sound:
        raise IntegrityError(
            f"what arrived is not the {remote.file_name} that was announced",
            hint="Run the command again. If this goes on, something on the way changes the bytes.",
        )
    return target


class FederationSource:
    """A bundle of the federation, over gRPC with the site's certificate."""

    def __init__(self, connection: Connection, name: str, version: int | None) -> None:
        self._connection = connection
        self._name = name
        self._version = version

    def look(self) -> Remote:
        entry = choose(self._connection.bundles(), self._name, self._version)
        self._version = entry.version  # a newer one that appears meanwhile is for another command
        digest = entry.sha256 if is_digest(entry.sha256) else ""
        return Remote(f"{entry.name}-{entry.version}{SUFFIX}", entry.size, digest, digest)

    def read(self, remote: Remote, offset: int) -> tuple[int, Iterator[Bytes]]:
        assert self._version is not None, remote.file_name
        return offset, self._connection.fetch_bundle(self._name, self._version, offset)


def choose(offered: tuple[values.Bundle, ...], name: str, version: int | None) -> values.Bundle:
    """The version asked for, or the newest that stands."""
    named = [one for one in offered if one.name == name and version in (None, one.version)]
    wanted = name if version is None else f"{name}-{version}"
    if not named:
        raise NotFoundError(
            f"the aggregator offers this site no bundle {shown(wanted)}",
            hint="`fedmap-site bundle fetch` without a name lists what it offers.",
        )
    standing = [one for one in named if not one.withdrawn]
    if not standing:
        raise StateError(
            f"{name} was withdrawn: {named[-1].withdrawn}",
            hint="It must not be used any more. Ask the operator for a newer version.",
        )
    return max(standing, key=lambda one: one.version)
