"""A file read once from front to back, the digests of its stretches running along. What the bytes mean is not
asked here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO

from fedmap.bundles.archive import DAMAGED
from fedmap.errors import IntegrityError

_PIECE = 1 << 20


@dataclass(frozen=True)
class Stretch:
    """What a stretch of the file was."""

    sha256: str
    head: bytes  # its first bytes, as many as were asked for


class FilePass:
    """One pass over an open file. `OSError`s are the caller's to put in words."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def take(self, size: int) -> bytes:
        """The next bytes, all of them, or `IntegrityError`."""
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def stretch(self, size: int, head: Callable[[bytes], int] | None = None) -> Stretch:
        """The next bytes by their digest; never more of them in memory than a piece and the head.

        `head` says by the first piece how many bytes to keep.
        """
        digest, kept, wanted = hashlib.sha256(), bytearray(), 0
        buffer = memoryview(bytearray(min(_PIECE, size)))
        for start in range(0, size, _PIECE):
            piece = buffer[: min(_PIECE, size - start)]
            self._fill(piece)
            digest.update(piece)
            if head is not None:
                wanted = wanted or head(bytes(piece))
                kept += piece[: max(0, wanted - len(kept))]
        return Stretch(digest.hexdigest(), bytes(kept))

    def at_end(self) -> bool:
        """Whether no byte is left. Asked of the file itself: it may have grown since it was opened."""
        return not self._file.read(1)

    def _fill(self, piece: memoryview) -> None:
        at = 0
        while at < len(piece):
            got = self._file.readinto(piece[at:])
            if not got:
                raise IntegrityError("the file ends too early: it was cut short", hint=DAMAGED)
            at += got
