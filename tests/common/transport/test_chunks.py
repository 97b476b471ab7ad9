"""Bytes and files in pieces, from any offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.errors import StateError, StorageError
from fedmap.transport.channel_options import CHUNK, client_options, server_options
from fedmap.transport.chunks import byte_chunks, file_chunks


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
