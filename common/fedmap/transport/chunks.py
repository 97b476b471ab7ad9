"""Bytes and files in pieces that fit one message, and those messages. Digests are the callers' concern.

Messages with one chunk of bytes are written and read without protobuf's coder: the same on the wire. The
coder takes fresh memory for every message; for a field of 1 MiB that costs many times the copy itself, and
a transfer spends most of its time there. A test holds both forms together for every such message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedmap.contract import wire
from fedmap.contract.v1 import values
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


LENGTH_DELIMITED = 2  # wire type of bytes


def serialise_chunk(chunk: bytes) -> bytes:
    """Any answer of a download (FetchPrior, FetchBundle, …): field 1, `chunk`."""
    return _field(1, chunk)


def answer_part(answer: bytes) -> bytes:
    """The first SubmitAnswerRequest, of an answer that is written already."""
    return _field(1, answer, present=True)


def tensors_part(chunk: bytes) -> bytes:
    """Each SubmitAnswerRequest after the first."""
    return _field(2, chunk, present=True)


@dataclass(frozen=True)
class UploadPart:
    """A SubmitAnswerRequest as it is read: the answer with its bytes, a chunk, or neither."""

    answer: values.Answer | None = None
    data: bytes = b""
    chunk: memoryview | None = None


def read_chunk(data: bytes) -> memoryview:
    """The chunk of a FetchPriorResponse, where it lies. What a newer version adds is left to protobuf."""
    alone = _lone_field(1, data)
    return memoryview(wire.read(values.FetchPriorResponse, data).chunk) if alone is None else alone


def read_upload(data: bytes) -> UploadPart:
    """A part of an upload, its chunk where it lies and its answer with the bytes that arrived."""
    chunk, answer = _lone_field(2, data), _lone_field(1, data)
    if chunk is not None:
        return UploadPart(chunk=chunk)
    if answer is not None:
        return UploadPart(wire.read(values.Answer, bytes(answer)), bytes(answer))
    part = wire.read(values.SubmitAnswerRequest, data)
    if part.chunk is not None:
        return UploadPart(chunk=memoryview(part.chunk))
    return UploadPart(part.answer, b"" if part.answer is None else wire.write(part.answer))


def _lone_field(number: int, data: bytes) -> memoryview | None:
    """The bytes of a message that holds this one field and nothing else; None for any other."""
    length, start = _read_varint(data, 1)
    if data[:1] == _varint(number << 3 | LENGTH_DELIMITED) and start + length == len(data):
        return memoryview(data)[start:]
    return None


def _field(number: int, value: bytes, present: bool = False) -> bytes:
    """One field of bytes; an empty one is left out unless its presence says something."""
    if not value and not present:
        return b""
    return b"".join((_varint(number << 3 | LENGTH_DELIMITED), _varint(len(value)), value))


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The number, and where what follows it begins; (0, 0) where there is none."""
    number = 0
    for position, group in enumerate(data[start : start + 10]):
        number |= (group & 0x7F) << 7 * position
        if group < 0x80:
            return number, start + position + 1
    return 0, 0
