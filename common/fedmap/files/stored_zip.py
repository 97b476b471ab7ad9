"""Zip files in the one subset that we write; nothing else is read.

Members are stored as they are, one after the other without a gap, each with the same fixed attributes. So all
bytes but the members' own follow from names, sizes and checksums, and a reader compares them with what it
would have written itself. Any zip program opens such a file; hardly another program writes one. Nothing here
takes a name, an offset or a size from the central directory, and nothing is ever extracted by name.

What the members mean, and whether they are to be trusted, is the caller's.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from fedmap.errors import IntegrityError, LimitError
from fedmap.files.durable import storage_errors

Source = bytes | Path
Sink = Callable[[bytes], object]

_LOCAL = struct.Struct("<4s5H3L2H")
_WIDE = struct.Struct("<2H2Q")  # sizes in 64 bits, as an extra field
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_UNIX = 3 << 8  # so that the permissions are understood
_TIME, _DATE = 0, 1 << 5 | 1  # 1 January 1980: the same content gives the same bytes
_STORED = 0
_PIECE = 1 << 20


class Style(NamedTuple):
    """How a header says its member's size."""

    version: int = 20  # of the format; every program knows 2.0
    wide: bool = False
    hidden: bool = False  # the sizes stand in the wide field alone


PLAIN = Style()
STREAMED = (Style(45, wide=True, hidden=True), Style(20, wide=True))
"""Python's zipfile around a stream, from 3.11.4 on and before. Read for files of earlier versions."""


@dataclass(frozen=True)
class Member:
    """One stored file."""

    name: str
    size: int
    checksum: int  # CRC-32, which a zip file wants; it protects from nothing but accidents
    style: Style = PLAIN

    def header(self) -> bytes:
        """What stands before the member's bytes."""
        shown = 0xFFFFFFFF if self.style.hidden else self.size
        extra = _WIDE.pack(1, 16, self.size, self.size) if self.style.wide else b""
        sizes = (self.checksum, shown, shown, len(self.name), len(extra))
        fixed = _LOCAL.pack(b"PK\3\4", self.style.version, 0, _STORED, _TIME, _DATE, *sizes)
        return fixed + self.name.encode("ascii") + extra


_NONE: Mapping[str, Member] = MappingProxyType({})


@dataclass(frozen=True)
class ZipForm:
    """What the files of one kind have in common."""

    limits: Mapping[str, int]
    """Bytes of each member at most, in the members' order. Below 4 GiB together: no 64-bit form."""
    permissions: int
    hint: str
    streamed: frozenset[str] = frozenset()  # members that earlier versions wrote so

    @property
    def most_bytes(self) -> int:
        """No file of this kind is larger."""
        return sum(self.limits.values()) + self.frame_size(list(self.limits))

    def frame_size(self, names: Sequence[str]) -> int:
        """All bytes that are not the members' own."""
        return sum(_LOCAL.size + _CENTRAL.size + 2 * len(name) for name in names) + _END.size

    def directory(self, members: Iterable[Member]) -> bytes:
        """All that stands after the last member: the central directory and its end record."""
        entries, offset = [], 0
        for member in members:
            version = member.style.version
            fixed = (b"PK\1\2", _UNIX | version, version, 0, _STORED, _TIME, _DATE)
            sizes = (member.checksum, member.size, member.size, len(member.name), 0, 0)
            entry = _CENTRAL.pack(*fixed, *sizes, 0, 0, self.permissions << 16, offset)
            entries.append(entry + member.name.encode("ascii"))
            offset += len(member.header()) + member.size
        table = b"".join(entries)
        end = _END.pack(b"PK\5\6", 0, 0, len(entries), len(entries), len(table), offset, 0)
        return table + end

    def check_size(self, name: str, size: int) -> None:
        if size > self.limits[name]:
            raise LimitError(
                f"{name} is larger than the limit of {self.limits[name]:,} bytes", hint=self.hint
            )


def write_zip(
    write: Sink, form: ZipForm, sources: Mapping[str, Source], known: Mapping[str, Member] = _NONE
) -> None:
    """The whole file, piece by piece, in the form's order. `known`: members that were measured before."""
    order = [name for name in form.limits if name in sources]
    members = [known.get(name) or measured(name, sources[name], form)[0] for name in order]
    for member in members:
        write(member.header())
        for piece in pieces(sources[member.name]):
            write(piece)
    write(form.directory(members))


def measured(name: str, source: Source, form: ZipForm) -> tuple[Member, str]:
    """A member of these bytes, and their SHA-256."""
    digest, total, size = hashlib.sha256(), 0, 0
    for piece in pieces(source):
        digest.update(piece)
        total = zlib.crc32(piece, total)
        size += len(piece)
        form.check_size(name, size)
    return Member(name, size, total), digest.hexdigest()


def pieces(source: Source) -> Iterator[bytes]:
    """Bytes, or those of a file, in pieces."""
    if isinstance(source, bytes):
        yield from (source[start : start + _PIECE] for start in range(0, len(source), _PIECE))
        return
    with storage_errors(source), source.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece


class ZipReader:
    """One pass over an open file, from front to back. `OSError`s are the caller's to put in words."""

    def __init__(self, file: BinaryIO, form: ZipForm) -> None:
        self._file, self._form = file, form
        self.at = 0
        self.members: list[Member] = []
        self.offsets: dict[str, int] = {}
        """Where each member's bytes begin."""

    def member(self, name: str) -> Member:
        """The next member by its header: it must be called `name` and be within its limit."""
        data = self._take(_LOCAL.size + len(name))
        if data[:4] != b"PK\3\4":
            raise self._damaged(f"the header of {name} is missing")
        _, _, flags, method, _, _, checksum, _, size, name_length, extra = _LOCAL.unpack_from(data)
        if flags:
            raise self._damaged(f"{name} is encrypted, or does not say its size before it begins")
        if method != _STORED:
            raise self._damaged(f"{name} is compressed")
        if name_length != len(name) or data[_LOCAL.size :] != name.encode("ascii"):
            raise self._damaged(f"another member stands where {name} must be")
        styles: tuple[Style, ...] = (PLAIN,)
        if extra:
            if name not in self._form.streamed or extra != _WIDE.size:
                raise self._damaged(f"{name} has extra fields")
            data += self._take(extra)
            size, styles = _WIDE.unpack(data[-extra:])[2], STREAMED
        self._form.check_size(name, size)
        for member in (Member(name, size, checksum, style) for style in styles):
            if member.header() == data:
                self.members.append(member)
                self.offsets[name] = self.at
                return member
        raise self._damaged(f"the header of {name} is not in its form")

    def read(self, name: str) -> bytes:
        """The next member, whole."""
        member = self.member(name)
        data = self._take(member.size)
        if zlib.crc32(data) != member.checksum:
            raise self._damaged(f"{name} is damaged")
        return data

    def copy(self, member: Member, sink: Sink | None = None) -> str:
        """The bytes of the member whose header was read; their SHA-256. Only a piece is in memory."""
        digest = hashlib.sha256()
        for piece in self._pieces(member.size):
            digest.update(piece)
            if sink is not None:
                sink(piece)
        return digest.hexdigest()

    def end(self) -> None:
        """What follows is as it must be, and then nothing. The file may have grown since it was opened."""
        frame = self._form.directory(self.members)
        if self._take(len(frame)) != frame or self._file.read(1):
            raise self._damaged("its table of contents does not fit its files")

    def _take(self, size: int) -> bytes:
        return b"".join(self._pieces(size))

    def _pieces(self, size: int) -> Iterator[bytes]:
        end = self.at + size
        while self.at < end:
            piece = self._file.read(min(_PIECE, end - self.at))
            if not piece:
                raise self._damaged("the file ends too early: it was cut short")
            self.at += len(piece)
            yield piece

    def _damaged(self, reason: str) -> IntegrityError:
        return IntegrityError(reason, hint=self._form.hint)
