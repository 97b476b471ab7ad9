"""Files that are whole or absent, also after a power cut: temp file → fsync → rename → fsync of the folder.

Whatever a disk refuses comes out as a `StorageError` that says in plain words what is wrong and what to do.
What the files hold is nobody's business here, and nothing is retried.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fedmap.errors import StorageError
from fedmap.files.access import let_in, missing_mount, refused_to

TEMPORARY = ".part-"
"""How the name of an unfinished file begins."""

# errno → (what happened, what to do); `{path}` is the file or folder, the rest is `access`.
_REASONS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: (
        "the disk is full",
        "Free space on the disk that holds {path}, then try again; nothing written before is lost.",
    ),
    errno.EDQUOT: ("the disk quota is used up", "Raise the quota or free space for {path}, then try again."),
    errno.EFBIG: ("the file is larger than the file system takes", "Put {path} on another file system."),
    errno.EROFS: (
        "the file system is read-only",
        "Mount the disk or volume that holds {path} for writing; in a container, is a volume mounted there?",
    ),
    errno.EACCES: ("permission denied: {refused}", "{let_in}"),
    errno.EPERM: ("not permitted: {refused}", "{let_in}"),
    errno.ENOENT: ("no such file or folder", "{mount}"),
    errno.ENOTDIR: ("part of the path is not a folder", "Check the path {path}."),
    errno.EISDIR: ("it is a folder", "Check the path {path}."),
    errno.EMFILE: ("too many open files", "Raise the limit of open files (ulimit -n) of this program."),
    errno.ENFILE: ("too many open files on this machine", "Raise the machine's limit of open files."),
    errno.EIO: (
        "the disk failed to read or write",
        "Check the disk that holds {path} and the system's log; replace the disk if errors go on.",
    ),
    errno.ESTALE: ("the network disk has lost the file", "Mount the disk that holds {path} again."),
    errno.ENAMETOOLONG: ("the name is too long", "Use a shorter path than {path}."),
}
# File systems that know no fsync of a folder say so with one of these; the file itself is safe on them.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})

MOST_RESERVED = 1 << 28
"""Bytes at a time: a size that a peer only claims must not take the whole disk."""

_C = ctypes.CDLL(None)
_KEEP_SIZE = 1  # <linux/falloc.h>
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of <fcntl.h>

_WRITE_BACK = 4 << 20  # bytes that go to the disk together while the file still grows


def storage_error(error: OSError, path: Path) -> StorageError:
    """The same failure in plain words, with the next step."""
    if error.errno not in _REASONS:
        reason = (error.strerror or type(error).__name__).lower()
        return StorageError(f"{path}: {reason}", hint=f"Check the disk and the permissions of {path}.")
    reason, hint = _REASONS[error.errno]
    words = {"path": str(path)}
    if "{refused}" in reason:
        words |= {"refused": refused_to(path), "let_in": let_in(path)}
    elif "{mount}" in hint:
        words |= {"mount": missing_mount(path)}
    return StorageError(f"{path}: {reason.format(**words)}", hint=hint.format(**words))


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """What the system refuses in this stretch is a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Puts `data` at `path`, replacing what was there in one step."""
    with DurableWriter(path.parent, mode) as writer:
        writer.write(data)
        writer.commit(path)


def try_writing(folder: Path) -> None:
    """Whether a file can be made in a folder and made durable, as a `StorageError`; nothing stays behind."""
    with DurableWriter(folder) as trial:
        trial.write(b"trial\n")
        trial.finish()


def read_file(path: Path) -> bytes:
    """The whole file; what goes wrong is a `StorageError`."""
    with storage_errors(path):
        return path.read_bytes()


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Makes the folder and what is missing above it, so that they are there after a power cut too."""
    with storage_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=mode, exist_ok=True)
            sync_folder(folder.parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> int:
    """Deletes what unfinished writers of a killed process left; only for one who holds the folder's lock."""
    count = 0
    with storage_errors(folder):
        for path in folder.glob(f"{TEMPORARY}*"):
            path.unlink(missing_ok=True)
            count += 1
    return count


class DurableWriter:
    """A file that grows by chunks and appears under its name only when committed; otherwise it is removed.

    Use as a context manager. Size and SHA-256 run along, so that a receiver can check both before it commits.
    `expected` is the size that the file is likely to get, where that is known.
    """

    def __init__(self, folder: Path, mode: int = 0o600, expected: int = 0) -> None:
        self.path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        self.size = 0
        self._written_back = 0
        self._hash = hashlib.sha256()
        self._committed = False
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        with storage_errors(folder):
            self._descriptor: int | None = os.open(self.path, flags, mode)
        reserve(self._descriptor, 0, expected)

    @property
    def digest(self) -> str:
        """SHA-256, hex, of what was written so far."""
        return self._hash.hexdigest()

    def write(self, chunk: bytes | memoryview) -> None:
        """Appends; after an error the writer can only be left."""
        if self._descriptor is None:
            raise ValueError("the file is closed")
        self._hash.update(chunk)
        rest = memoryview(chunk)
        with storage_errors(self.path.parent):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self.size += len(chunk)
        if self.size - self._written_back >= _WRITE_BACK:
            start_writing_back(self._descriptor, self._written_back, self.size)
            self._written_back = self.size

    def finish(self) -> Path:
        """Makes the bytes durable under the temporary name, for who wants to look before the commit."""
        if self._descriptor is not None:
            with storage_errors(self.path.parent):
                os.fsync(self._descriptor)
                self._close()
        return self.path

    def commit(self, path: Path) -> None:
        """Gives the file its name, on the same file system; what had the name before is replaced."""
        self.finish()
        with storage_errors(path):
            self.path.replace(path)
            self._committed = True
            sync_folder(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A failure to clean up must not hide the failure that led here; leftovers go at the next start.
        with contextlib.suppress(OSError):
            self._close()
        if not self._committed:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """One at a time, between processes and threads, for what is done soon: it waits. Never nest it."""
    make_folder(path.parent)
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


OWN_STATE = "Stop the other process, or give this one a state folder of its own."


class FolderLock:
    """One process at a time: an exclusive flock on a lock file; the kernel frees it when the process ends."""

    def __init__(self, path: Path, hint: str = OWN_STATE) -> None:
        self._path = path
        self._hint = hint  # what to do where another process has it
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock at once or raises `StorageError`; never waits."""
        if self._descriptor is not None:
            raise ValueError("the lock is already held")
        with storage_errors(self._path):
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StorageError(
                f"{self._path.parent}: another process (number {holder}) uses this folder",
                hint=self._hint,
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise storage_error(error, self._path) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Gives the lock back; the file stays, since removing it would let two processes hold two files."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


# Hints to Linux about a large file. They change when the kernel works, never what is durable; what goes
# wrong is told by the write or the sync that follows, and a system without these calls does without them.


def reserve(descriptor: int, begin: int, end: int) -> None:
    """Blocks for these bytes in one go: a fourth less to write than when each write asks for its own."""
    length = min(end - begin, MOST_RESERVED)
    if length > 0 and hasattr(_C, "fallocate"):
        _C.fallocate(descriptor, _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(length))


def start_writing_back(descriptor: int, begin: int, end: int) -> None:
    """The disk takes these bytes while more arrive, so that the sync at the end has little left to do.

    Neither waits for the disk nor takes note of its errors, which are left to that sync.
    """
    if hasattr(_C, "sync_file_range"):
        _C.sync_file_range(descriptor, ctypes.c_int64(begin), ctypes.c_int64(end - begin), _WRITE)
