"""The zip archive of a bundle: the one subset that we write, and nothing else is read.

Members are stored as they are, one after the other without a gap, each with the same fixed attributes. So all
bytes but the members' own follow from names, sizes and checksums, and a reader compares them with what it
would have written itself. Any zip program opens such a file; no other zip file is a bundle. Nothing here
takes a name, an offset or a size from the central directory, and nothing is ever extracted by name.

What the members mean, and whether they are to be trusted, is `verification`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from fedmap.bundles.manifest import CALIBRATION, CARD, MANIFEST, MU, PSI, SIGNATURE
from fedmap.errors import IntegrityError, LimitError

_MIB = 1 << 20
ORDER = (MANIFEST, SIGNATURE, MU, PSI, CARD, CALIBRATION)
LIMITS = {
    MANIFEST: 16 * _MIB,
    SIGNATURE: 1024,
    MU: 1024 * _MIB,
    PSI: 2048 * _MIB,
    CARD: _MIB,
    CALIBRATION: _MIB,
}
"""Bytes of a member at most. Together below 4 GiB, so the archive never needs its 64-bit form."""
DAMAGED = "Download the file again. If that does not help, ask the federation's operator."

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_NEEDED = 20  # version 2.0 of the format, which every program knows
_MADE_BY = 3 << 8 | _NEEDED  # unix, so that the permissions below are understood
_TIME, _DATE = 0, 1 << 5 | 1  # 1 January 1980: the same release gives the same bytes
_PERMISSIONS = 0o100644 << 16
_STORED = 0
_LONGEST_NAME = max(map(len, ORDER))


@dataclass(frozen=True)
class Member:
    """One stored file."""

    name: str
    size: int
    checksum: int  # CRC-32


def local_header(member: Member) -> bytes:
    """What stands before a member's bytes."""
    name = member.name.encode("ascii")
    return (
        _LOCAL.pack(
            b"PK\3\4",
            _NEEDED,
            0,
            _STORED,
            _TIME,
            _DATE,
            member.checksum,
            member.size,
            member.size,
            len(name),
            0,
        )
        + name
    )


def directory(members: list[Member]) -> bytes:
    """All that stands after the last member: the central directory and its end record."""
    entries, offset = [], 0
    for member in members:
        name = member.name.encode("ascii")
        fixed = (b"PK\1\2", _MADE_BY, _NEEDED, 0, _STORED, _TIME, _DATE)
        sizes = (member.checksum, member.size, member.size, len(name), 0, 0)
        entries.append(_CENTRAL.pack(*fixed, *sizes, 0, 0, _PERMISSIONS, offset) + name)
        offset += header_size(member.name) + member.size
    table = b"".join(entries)
    end = _END.pack(b"PK\5\6", 0, 0, len(members), len(members), len(table), offset, 0)
    return table + end


def header_size(name: str) -> int:
    """Bytes of a local header."""
    return _LOCAL.size + len(name)


def directory_size(names: list[str]) -> int:
    """Bytes after the last member."""
    return sum(_CENTRAL.size + len(name) for name in names) + _END.size


def most_bytes() -> int:
    """No bundle is larger."""
    frame = sum(map(header_size, ORDER)) + directory_size(list(ORDER))
    return sum(LIMITS.values()) + frame


def parse_header(data: bytes, name: str) -> Member:
    """The member that this local header announces, which must be called `name` and be within its limit."""
    if data[:4] != b"PK\3\4" or len(data) != header_size(name):
        raise _damaged(f"the header of {name} is missing")
    _, _, flags, method, _, _, checksum, _, size, name_length, extra = _LOCAL.unpack_from(data)
    if flags:
        raise _damaged(f"{name} is encrypted, or does not say its size before it begins")
    if method != _STORED:
        raise _damaged(f"{name} is compressed")
    if name_length != len(name) or data[_LOCAL.size :] != name.encode("ascii"):
        raise _damaged(f"another member stands where {name} must be")
    if extra:
        raise _damaged(f"{name} has extra fields")
    if size > LIMITS[name]:
        raise LimitError(f"{name} is larger than the limit of {LIMITS[name]:,} bytes", hint=DAMAGED)
    member = Member(name, size, checksum)
    if local_header(member) != data:
        raise _damaged(f"the header of {name} is not as a bundle's")
    return member


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """CRC-32, which a zip file wants beside our own digests; it protects from nothing but accidents."""
    return zlib.crc32(data, before)


def _damaged(reason: str) -> IntegrityError:
    return IntegrityError(reason, hint=DAMAGED)
