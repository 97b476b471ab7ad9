"""Messages that carry one chunk of bytes, written without protobuf's encoder: the same bytes, in one copy.

protobuf's encoder grows its memory while it writes; for a field of 1 MiB that costs a hundred times the copy
itself, and a transfer spends most of its time there. A test holds both forms together for every such message.
"""

from __future__ import annotations

from typing import Protocol

from common.contract.v1 import federation_pb2 as pb

LENGTH_DELIMITED = 2  # wire type of bytes


class ChunkMessage(Protocol):
    """A message whose only content is field 1, `chunk`."""

    @property
    def chunk(self) -> bytes: ...


def serialise_chunk(message: ChunkMessage) -> bytes:
    """FetchPriorResponse, ExportDropResponse, ImportDropRequest."""
    return _field(1, message.chunk)


def serialise_upload(message: pb.SubmitAnswerRequest) -> bytes:
    """A part of an upload: the answer by protobuf, a chunk of tensors directly."""
    if message.WhichOneof("part") == "chunk":
        return _field(2, message.chunk, present=True)
    return message.SerializeToString()


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
