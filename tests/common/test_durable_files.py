"""Files that are whole or absent, and disks that refuse."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmap.errors import StorageError
from fedmap.files import durable
from fedmap.files.digests import file_sha256, is_digest, sha256_hex
from fedmap.files.durable import (
    TEMPORARY,
    DurableWriter,
    FolderLock,
    make_folder,
    read_file,
    remove_leftovers,
    storage_error,
    write_durably,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_written_file_is_there_whole_and_private(tmp_path: Path) -> None:
    write_durably(tmp_path / "key.pem", b"secret")
    assert read_file(tmp_path / "key.pem") == b"secret"
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == {"key.pem"}


def test_a_second_write_replaces_the_first(tmp_path: Path) -> None:
    write_durably(tmp_path / "state", b"old and longer")
    write_durably(tmp_path / "state", b"new")
    assert (tmp_path / "state").read_bytes() == b"new"


def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(descriptor: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def seen_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    write_durably(tmp_path / "blob", b"x")
    assert steps == ["file", "rename", "folder"]


def test_a_failed_write_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_durably(tmp_path / "state", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        write_durably(tmp_path / "state", b"new")
    assert "Free space" in caught.value.hint
    assert (tmp_path / "state").read_bytes() == b"old"
    assert names(tmp_path) == {"state"}


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_durably(tmp_path / "slow", b"0123456789")
    assert (tmp_path / "slow").read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.EPERM, "permitted"),
        (errno.ENOENT, "no such"),
        (errno.EMFILE, "too many open files"),
        (errno.EIO, "failed to read or write"),
    ],
)
def test_each_refusal_of_a_disk_has_plain_words_and_a_hint(number: int, words: str) -> None:
    error = storage_error(OSError(number, "jargon"), Path("/srv/state"))
    assert words in error.message
    assert "/srv/state" in error.message
    assert error.hint
    assert "{" not in error.hint


def test_an_unknown_refusal_still_says_what_the_system_said() -> None:
    error = storage_error(OSError(errno.ELOOP, "Too many levels of symbolic links"), Path("/s"))
    assert "symbolic links" in error.message
    assert storage_error(OSError("odd"), Path("/s")).hint


def test_a_missing_folder_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file or folder"):
        write_durably(tmp_path / "missing" / "file", b"x")
    with pytest.raises(StorageError, match="no such file or folder"):
        read_file(tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error_with_a_hint(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="permission denied"):
        write_durably(tmp_path / "file", b"x")
    tmp_path.chmod(0o700)


def test_a_file_system_without_folder_sync_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def no_folders(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", no_folders)
    write_durably(tmp_path / "file", b"x")
    assert (tmp_path / "file").exists()


def test_a_writer_counts_and_hashes_what_it_gets(tmp_path: Path) -> None:
    with DurableWriter(tmp_path) as writer:
        writer.write(b"ab")
        writer.write(memoryview(b"cd"))
        assert writer.size == 4
        assert writer.digest == hashlib.sha256(b"abcd").hexdigest()
        writer.commit(tmp_path / writer.digest)
    assert names(tmp_path) == {hashlib.sha256(b"abcd").hexdigest()}


def test_a_writer_that_is_not_committed_leaves_nothing(tmp_path: Path) -> None:
    with DurableWriter(tmp_path) as writer:
        writer.write(b"half")
    assert not names(tmp_path)


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with DurableWriter(tmp_path) as writer:
            writer.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not names(tmp_path)


def test_a_finished_writer_can_be_looked_at_before_the_commit(tmp_path: Path) -> None:
    with DurableWriter(tmp_path) as writer:
        writer.write(b"abc")
        assert writer.finish().read_bytes() == b"abc"
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"more")
        writer.commit(tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == b"abc"


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\n"
        "from fedmap.files.durable import DurableWriter\n"
        "writer = DurableWriter(pathlib.Path(sys.argv[1])); writer.write(b'half'); os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -9
    (leftover,) = names(tmp_path)
    assert leftover.startswith(TEMPORARY)
    write_durably(tmp_path / "kept", b"x")
    assert remove_leftovers(tmp_path) == 1
    assert names(tmp_path) == {"kept"}


def test_folders_are_made_with_all_that_is_missing_above(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").stat().st_mode & 0o777 == 0o700
    write_durably(tmp_path / "file", b"x")
    with pytest.raises(StorageError, match="not a folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(StorageError, match="not a folder"):
        make_folder(tmp_path / "file" / "below")


def test_a_second_holder_of_a_lock_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "lock"):
        with pytest.raises(StorageError, match=f"number {os.getpid()}") as caught:
            FolderLock(tmp_path / "lock").acquire()
        assert "Stop the other process" in caught.value.hint
    with FolderLock(tmp_path / "lock"):
        pass


def test_a_lock_is_free_again_when_its_holder_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from fedmap.files.durable import FolderLock\n"
        "FolderLock(pathlib.Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match=f"number {holder.pid}"):
            FolderLock(tmp_path / "lock").acquire()
        holder.kill()
        holder.wait()
    with FolderLock(tmp_path / "lock"):
        pass


def test_a_lock_is_not_taken_twice_by_one_holder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    lock.acquire()
    with pytest.raises(ValueError, match="already held"):
        lock.acquire()
    lock.release()
    lock.release()


def test_digests_of_bytes_and_files_agree(tmp_path: Path) -> None:
    data = b"x" * 3_000_000
    (tmp_path / "file").write_bytes(data)
    assert file_sha256(tmp_path / "file") == sha256_hex(data) == hashlib.sha256(data).hexdigest()
    with pytest.raises(StorageError, match="no such file"):
        file_sha256(tmp_path / "missing")


@pytest.mark.parametrize(
    "text", ["", "abc", "A" * 64, "g" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n", "../" + "0" * 61]
)
def test_what_is_no_digest_is_told_from_one(text: str) -> None:
    assert not is_digest(text)
    assert is_digest("0" * 64)


LARGE = 9 << 20  # more than is written back at a time


@pytest.mark.parametrize("expected", [0, 1, LARGE, 2 * LARGE])
def test_a_file_has_its_own_size_whatever_was_expected(tmp_path: Path, expected: int) -> None:
    content = os.urandom(LARGE)
    with DurableWriter(tmp_path, expected=expected) as writer:
        for start in range(0, LARGE, 1 << 20):
            writer.write(content[start : start + (1 << 20)])
        writer.commit(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_peer_that_claims_a_huge_size_does_not_get_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        durable.reserve(file.fileno(), 0, 1 << 50)
        status = os.fstat(file.fileno())
    assert status.st_size == 0
    assert status.st_blocks * 512 <= durable.MOST_RESERVED + (1 << 20)


def test_a_system_without_the_calls_does_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_C", object())
    with DurableWriter(tmp_path, expected=LARGE) as writer:
        writer.write(b"x" * LARGE)
        writer.commit(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == LARGE
