"""A chunk that is sent as it is has the bytes of the message that protobuf would write."""

from __future__ import annotations

import pytest

from fedmap.contract.v1 import federation_pb2
from fedmap.transport.channel_options import CHUNK, MIB
from fedmap.transport.chunk_messages import serialise_upload


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, CHUNK])
def test_a_chunk_of_an_upload_has_the_bytes_of_protobuf(size: int) -> None:
    chunk = b"x" * size
    written = serialise_upload(chunk)
    assert written == federation_pb2.SubmitAnswerRequest(chunk=chunk).SerializeToString()
    assert len(written) <= MIB
