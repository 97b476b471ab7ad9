"""Chunk messages have exactly the bytes that protobuf would write."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fedmap.contract import wire
from fedmap.contract.v1 import bundles_pb2, federation_pb2, operator_pb2, values
from fedmap.errors import RejectedError, StateError, StorageError
from fedmap.transport.channel_options import CHUNK, MIB, client_options, server_options
from fedmap.transport.chunks import (
    UploadPart,
    answer_part,
    byte_chunks,
    file_chunks,
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


@given(st.integers(0, 3 * CHUNK), st.data())
def test_the_pieces_from_any_offset_are_the_rest(size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, size))
    whole = bytes(size)
    pieces = list(byte_chunks(whole, offset))
    assert b"".join(pieces) == whole[offset:]
    assert all(0 < len(piece) <= CHUNK for piece in pieces)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_file_gives_the_same_pieces_as_its_bytes(tmp_path: Path, size: int, offset: int) -> None:
    content = bytes(index % 251 for index in range(size))
    (tmp_path / "prior").write_bytes(content)
    offset = min(offset, size)
    assert list(file_chunks(tmp_path / "prior", offset)) == list(byte_chunks(content, offset))


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
def test_an_offset_past_the_end_is_refused(tmp_path: Path, offset: int) -> None:
    (tmp_path / "prior").write_bytes(b"abc")
    with pytest.raises(StateError, match="past the end"):
        list(file_chunks(tmp_path / "prior", offset))
    with pytest.raises(StateError, match="past the end"):
        list(byte_chunks(b"abc", offset))


def test_a_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        list(file_chunks(tmp_path / "missing"))


def test_only_a_given_proxy_is_used() -> None:
    assert ("grpc.enable_http_proxy", 0) in client_options()
    assert ("grpc.http_proxy", "http://proxy:3128") in client_options("http://proxy:3128")
    assert ("grpc.so_reuseport", 0) in server_options()
