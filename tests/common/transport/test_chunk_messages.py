"""Chunk messages have exactly the bytes that protobuf would write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.contract.v1 import federation_pb2, operator_pb2
from common.transport.channel_options import CHUNK, MIB
from common.transport.chunk_messages import serialise_chunk, serialise_upload

SIZES = [0, 1, 127, 128, 16383, 16384, CHUNK]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "kind",
    [federation_pb2.FetchPriorResponse, operator_pb2.ExportDropResponse, operator_pb2.ImportDropRequest],
)
def test_a_chunk_has_the_bytes_of_protobuf_and_stays_within_a_mebibyte(
    kind: type[federation_pb2.FetchPriorResponse], size: int
) -> None:
    message = kind(chunk=b"x" * size)
    written = serialise_chunk(message)
    assert written == message.SerializeToString()
    assert len(written) <= MIB


@pytest.mark.parametrize("size", SIZES)
def test_a_part_of_an_upload_has_the_bytes_of_protobuf(size: int) -> None:
    message = federation_pb2.SubmitAnswerRequest(chunk=b"x" * size)
    assert serialise_upload(message) == message.SerializeToString()


@given(st.text(max_size=40), st.integers(0, 2**32 - 1))
def test_an_answer_is_left_to_protobuf(study: str, attempt: int) -> None:
    message = federation_pb2.SubmitAnswerRequest(answer=federation_pb2.Answer(study=study, attempt=attempt))
    assert federation_pb2.SubmitAnswerRequest.FromString(serialise_upload(message)) == message
