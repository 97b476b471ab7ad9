"""Blobs: a file under its digest is whole, whatever happens while it is written."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmap.errors import IntegrityError, NotFoundError, StorageError
from fedmap.files.digests import sha256_hex
from fedmap_aggregator.store import BlobStore

DATA = b"tensors" * 1000
DIGEST = sha256_hex(DATA)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def test_bytes_are_kept_under_their_digest_for_their_owner_only(blobs: BlobStore, folder: Path) -> None:
    assert blobs.put(DATA) == DIGEST
    path = blobs.existing(DIGEST)
    assert path.read_bytes() == DATA
    assert files(folder) == {f"kept/{DIGEST[:2]}/{DIGEST}"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_same_bytes_again_are_the_same_file(blobs: BlobStore, folder: Path) -> None:
    assert blobs.put(DATA) == blobs.put(DATA) == DIGEST
    assert len(files(folder)) == 1


def test_a_received_file_is_kept_when_it_is_what_was_announced(blobs: BlobStore, folder: Path) -> None:
    with blobs.receive() as writer:
        writer.write(DATA[:10])
        assert not blobs.has(DIGEST)
        writer.write(DATA[10:])
        blobs.keep(writer, DIGEST)
    assert blobs.has(DIGEST)
    assert len(files(folder)) == 1


def test_other_bytes_than_announced_are_refused_and_leave_nothing(blobs: BlobStore, folder: Path) -> None:
    def receive() -> None:
        with blobs.receive() as writer:
            writer.write(DATA[:-1])
            blobs.keep(writer, DIGEST)

    with pytest.raises(IntegrityError, match="announced"):
        receive()
    assert files(folder) == set()


def test_an_upload_that_breaks_off_leaves_nothing(blobs: BlobStore, folder: Path) -> None:
    def receive() -> None:
        with blobs.receive() as writer:
            writer.write(DATA[:100])
            raise ConnectionError("cut")

    with pytest.raises(ConnectionError):
        receive()
    assert files(folder) == set()


def test_a_draft_becomes_a_blob_without_a_copy(blobs: BlobStore, folder: Path) -> None:
    draft = blobs.draft()
    draft.write_bytes(DATA)
    inode = draft.stat().st_ino
    assert blobs.adopt(draft) == DIGEST
    assert blobs.existing(DIGEST).stat().st_ino == inode
    assert len(files(folder)) == 1


def test_a_draft_that_was_never_written_is_an_error(blobs: BlobStore) -> None:
    with pytest.raises(StorageError, match="no such file"):
        blobs.adopt(blobs.draft())


def test_leftovers_go_at_the_start_and_blobs_stay(blobs: BlobStore, folder: Path) -> None:
    blobs.put(DATA)
    blobs.draft().write_bytes(b"half a prior")
    os.close(os.open(blobs.draft(), os.O_CREAT | os.O_WRONLY))
    assert blobs.clean() == 2
    assert blobs.clean() == 0
    assert len(files(folder)) == 1


def test_opening_the_folder_a_second_time_does_not_disturb_an_upload(blobs: BlobStore, folder: Path) -> None:
    with blobs.receive() as writer:
        writer.write(DATA)
        BlobStore(folder)
        blobs.keep(writer, DIGEST)
    assert blobs.has(DIGEST)


@pytest.mark.parametrize(
    "name", ["", "..", "../../etc/passwd", DIGEST.upper(), DIGEST[:-1], DIGEST + "\n", "a" * 65, "é" * 64]
)
def test_a_name_that_is_no_digest_reaches_no_file(blobs: BlobStore, name: str) -> None:
    for ask in (blobs.path, blobs.has, blobs.existing, blobs.verify):
        with pytest.raises(NotFoundError):
            ask(name)


def test_a_blob_that_is_not_there_is_not_found(blobs: BlobStore) -> None:
    assert not blobs.has(DIGEST)
    with pytest.raises(NotFoundError, match=DIGEST[:12]):
        blobs.existing(DIGEST)


def test_a_blob_that_rotted_on_the_disk_is_found_out_and_mended_by_the_next_copy(blobs: BlobStore) -> None:
    blobs.put(DATA)
    blobs.verify(DIGEST)
    blobs.existing(DIGEST).write_bytes(DATA[:-1] + b"\x00")
    with pytest.raises(IntegrityError, match="changed on the disk"):
        blobs.verify(DIGEST)
    blobs.put(DATA)
    blobs.verify(DIGEST)


def test_refused_bytes_go_to_quarantine_and_are_no_blob(blobs: BlobStore, folder: Path) -> None:
    with blobs.receive() as writer:
        writer.write(DATA)
        path = blobs.quarantine(writer)
    assert path.read_bytes() == DATA
    assert files(folder) == {f"quarantine/{DIGEST}"}
    assert not blobs.has(DIGEST)


def test_a_flood_of_refused_bytes_does_not_fill_the_disk(folder: Path) -> None:
    blobs = BlobStore(folder, quarantine_bytes=2500)
    for number in range(5):
        with blobs.receive() as writer:
            writer.write(bytes([number]) * 1000)
            newest = blobs.quarantine(writer)
        os.utime(newest, ns=(number, number))
    kept = {path.read_bytes()[0] for path in (folder / "quarantine").iterdir()}
    assert kept == {3, 4}


def test_the_same_blob_from_many_threads_at_once_is_whole(blobs: BlobStore, folder: Path) -> None:
    barrier = threading.Barrier(8)

    def put(_: int) -> str:
        barrier.wait(60)
        return blobs.put(DATA)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(put, range(8))) == {DIGEST}
    blobs.verify(DIGEST)
    assert len(files(folder)) == 1
