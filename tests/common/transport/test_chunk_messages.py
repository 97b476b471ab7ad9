"""Chunk messages have exactly the bytes that protobuf would write."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fedmap.contract import wire
from fedmap.contract.v1 import bundles_pb2, federation_pb2, operator_pb2, values
from fedmap.errors import RejectedError
from fedmap.transport.channel_options import CHUNK, MIB
from fedmap.transport.chunk_messages import (
    UploadPart,
    answer_part,
    read_chunk,
    read_upload,
    serialise_chunk,
    tensors_part,
)

SIZES = [0, 1, 127, 128, 16383, 16384, CHUNK]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "kind",
    [
        federation_pb2.FetchPriorResponse,
        bundles_pb2.FetchBundleResponse,
        operator_pb2.ExportDropResponse,
        operator_pb2.DownloadBundleResponse,
    ],
)
def test_a_chunk_has_the_bytes_of_protobuf_and_stays_within_a_mebibyte(
    kind: type[federation_pb2.FetchPriorResponse], size: int
) -> None:
    message = kind(chunk=b"x" * size)
    written = serialise_chunk(message.chunk)
    assert written == message.SerializeToString()
    assert len(written) <= MIB


@pytest.mark.parametrize("size", SIZES)
def test_a_chunk_is_read_as_it_was_written(size: int) -> None:
    message = federation_pb2.FetchPriorResponse(chunk=b"y" * size)
    assert bytes(read_chunk(message.SerializeToString())) == message.chunk


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_a_field_that_a_newer_version_adds_is_skipped(chunk: bytes, added: bytes) -> None:
    known = federation_pb2.FetchPriorResponse(chunk=chunk).SerializeToString()
    newer = federation_pb2.SubmitAnswerRequest(chunk=added).SerializeToString()  # a field 2
    for data in (known + newer, newer + known):
        assert bytes(read_chunk(data)) == chunk


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_or_read_as_protobuf_reads_them(data: bytes) -> None:
    try:
        expected = federation_pb2.FetchPriorResponse.FromString(data).chunk
    except DecodeError:
        with pytest.raises(RejectedError):
            read_chunk(data)
    else:
        assert bytes(read_chunk(data)) == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_part_of_an_upload_has_the_bytes_of_protobuf(size: int) -> None:
    message = federation_pb2.SubmitAnswerRequest(chunk=b"x" * size)
    assert tensors_part(message.chunk) == message.SerializeToString()
    assert message.ByteSize() <= MIB
    part = read_upload(message.SerializeToString())
    assert part.answer is None
    assert part.chunk is not None
    assert bytes(part.chunk) == message.chunk


@given(st.text(max_size=40), st.integers(0, 2**32 - 1))
def test_an_answer_is_sent_as_it_was_written_and_arrives_with_its_bytes(study: str, attempt: int) -> None:
    answer = values.Answer(study, attempt=attempt)
    data = wire.write(answer)
    assert answer_part(data) == wire.write(values.SubmitAnswerRequest(answer))
    assert read_upload(answer_part(data)) == UploadPart(answer, data)


def test_a_part_with_nothing_in_it_is_neither() -> None:
    assert read_upload(b"").answer is None
    assert read_upload(b"").chunk is None
