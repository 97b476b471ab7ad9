"""Bytes and files in pieces that fit one message. Digests are the callers' concern."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedmap.errors import StateError
from fedmap.files.durable import storage_errors
from fedmap.transport.channel_options import CHUNK


def byte_chunks(data: bytes, offset: int = 0) -> Iterator[bytes]:
    """The bytes from an offset on; nothing where it is the end."""
    _check_offset(offset, len(data))
    for start in range(offset, len(data), CHUNK):
        yield data[start : start + CHUNK]


def file_chunks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """The bytes of a file from an offset on; nothing where it is the end."""
    # Unbuffered: each piece is read straight into the bytes that are sent.
    with storage_errors(path), path.open("rb", buffering=0) as file:
        _check_offset(offset, path.stat().st_size)
        file.seek(offset)
        while chunk := file.read(CHUNK):
            yield chunk


def _check_offset(offset: int, size: int) -> None:
    if not 0 <= offset <= size:
        raise StateError(
            f"offset {offset} is past the end ({size} bytes)",
            hint="Delete the partial file and fetch it again from the beginning.",
        )
