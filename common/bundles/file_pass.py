"""A file read once from front to back, digests running along: of the whole, and of any stretch of it.

The digest of the whole is taken in a thread of its own where there are two processors (hashing gives up the
interpreter's lock). What the bytes mean is not asked here.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from types import TracebackType
from typing import Self

from common.bundles.archive import DAMAGED
from common.errors import IntegrityError

_PIECE = 1 << 20
_LAG = 4  # pieces that the thread may be behind
_WORTH_A_THREAD = 1 << 22  # bytes: for less, a thread takes longer to start than to hash


@dataclass(frozen=True)
class Stretch:
    """What a stretch of the file was."""

    sha256: str
    head: bytes  # its first bytes, as many as were asked for


class FilePass:
    """One pass over an open file. Use as a context manager. `OSError`s are the caller's to put in words."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._whole = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, "bundle-digest")

    def take(self, size: int) -> bytes:
        """The next bytes, all of them, or `IntegrityError`."""
        data = bytearray(size)
        self._fill(memoryview(data))
        self._whole.update(data)
        return bytes(data)

    def stretch(self, size: int, head: Callable[[bytes], int] | None = None) -> Stretch:
        """The next bytes by their digests; never more of them in memory than a few pieces and the head.

        `head` says by the first piece how many bytes to keep.
        """
        own, kept, wanted = hashlib.sha256(), bytearray(), 0
        threaded = size >= _WORTH_A_THREAD and (os.cpu_count() or 1) > 1
        buffers = [memoryview(bytearray(min(_PIECE, size))) for _ in range(_LAG if threaded else 1)]
        pending: deque[Future[None]] = deque()
        for number, start in enumerate(range(0, size, _PIECE)):
            if len(pending) == _LAG:
                pending.popleft().result()  # from here on its buffer is free
            piece = buffers[number % len(buffers)][: min(_PIECE, size - start)]
            self._fill(piece)
            if threaded:
                pending.append(self._thread.submit(self._whole.update, piece))
            else:
                self._whole.update(piece)
            own.update(piece)
            if head is not None:
                wanted = wanted or head(bytes(piece))
                kept += piece[: max(0, wanted - len(kept))]
        for update in pending:
            update.result()
        return Stretch(own.hexdigest(), bytes(kept))

    def at_end(self) -> bool:
        """Whether no byte is left. Asked of the file itself: it may have grown since it was opened."""
        return not self._file.read(1)

    def whole(self) -> str:
        """SHA-256, hex, of all that was read."""
        return self._whole.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown()

    def _fill(self, piece: memoryview) -> None:
        at = 0
        while at < len(piece):
            got = self._file.readinto(piece[at:])
            if not got:
                raise IntegrityError("the file ends too early: it was cut short", hint=DAMAGED)
            at += got
