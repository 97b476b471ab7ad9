"""What disks and databases do to us, for real: locked, read-only, full, gone, damaged, refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from fedmap.errors import StorageError
from fedmap.files.digests import sha256_hex
from fedmap_aggregator.store import BlobStore, Store, read_url, schema_status
from tests.aggregator.store.conftest import NOW, MakeStore, add_study, an_answer
from tests.aggregator.store.test_database_url import SECRET, everything_said
from tests.postgres import PostgresServer

MIB = 1 << 20


class SmallDisk:
    """A file system in memory with a few megabytes."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={mib}m,mode=755", "tmpfs", str(folder))

    def make_read_only(self) -> None:
        self._mount("-o", "remount,ro", str(self.folder))

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @staticmethod
    def _mount(*arguments: str) -> None:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.getuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    disk = SmallDisk(tmp_path / "disk", mib=2)
    yield disk
    disk.unmount()


@pytest.fixture
def small_tablespace(postgres_server: PostgresServer) -> Iterator[str]:
    """PostgreSQL's own account must reach the disk, so it is not under tmp_path."""
    if os.getuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    disk = SmallDisk(postgres_server.folder / "small", mib=16)
    postgres_server.own(disk.folder)
    create = sql.SQL("CREATE TABLESPACE small LOCATION {}")
    postgres_server.execute(create.format(sql.Literal(str(disk.folder))))
    yield "small"
    postgres_server.execute(sql.SQL("DROP TABLESPACE small"))
    disk.unmount()


def fail(store: Store) -> StorageError:
    """What a write is refused with; it always says whom to ask for what."""
    with pytest.raises(StorageError) as caught, store.transaction() as transaction:
        transaction.audit.append("aggregator", "write", "", {}, NOW)
    assert len(caught.value.hint) > 20
    return caught.value


def fill_up(store: Store, content: bytes, limit: int = 1000) -> tuple[int, StorageError]:
    """How many answers went in before the store refused, and what it said."""
    add_study(store)
    for number in range(limit):
        try:
            with store.transaction() as transaction:
                transaction.answers.put(an_answer(f"site-{number}", content=content))
        except StorageError as error:
            return number, error
    raise AssertionError("the disk did not fill up")


def test_a_database_locked_by_another_process_is_said_after_the_wait(
    store: Store, database_url: str, open_store: MakeStore
) -> None:
    impatient = open_store(database_url, 0.05)
    with store.transaction():
        error = fail(impatient)
    assert "locked by another process" in error.message
    with impatient.transaction() as transaction:
        assert transaction.audit.verify().entries == 0


def test_a_thread_that_holds_the_database_too_long_is_not_waited_for_forever(
    store: Store, database_url: str, open_store: MakeStore
) -> None:
    impatient = open_store(database_url, 0.05)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with impatient.transaction():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    error = fail(impatient)
    done.set()
    thread.join()
    assert "locked" in error.message
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "write", "", {}, NOW)


def test_a_full_disk_under_sqlite_loses_nothing_that_was_stored(
    small_disk: SmallDisk, open_store: MakeStore
) -> None:
    url = f"sqlite:///{small_disk.folder / 'fedmap.db'}"
    store = open_store(url)
    store.prepare()
    ballast = small_disk.folder / "ballast"
    ballast.write_bytes(bytes(MIB))
    content = bytes(100_000)
    stored, error = fill_up(store, content)
    assert "the disk is full" in error.message
    assert "Free space" in error.hint
    ballast.unlink()
    with store.transaction() as transaction:
        transaction.answers.put(an_answer("one-more", content=content))
    store.close()
    with open_store(url).reading() as transaction:
        assert len(transaction.answers.list("stroke", "round-1")) == stored + 1


def test_a_full_disk_under_postgresql_loses_nothing_that_was_stored(
    postgres_server: PostgresServer, small_tablespace: str, open_store: MakeStore
) -> None:
    with postgres_server.database(small_tablespace) as url:
        store = open_store(url)
        store.prepare()
        stored, error = fill_up(store, os.urandom(500_000))
        assert "the disk is full" in error.message
        with store.reading() as transaction:
            assert len(transaction.answers.list("stroke", "round-1")) == stored > 0


def test_a_full_disk_under_the_blobs_leaves_no_half_blob(small_disk: SmallDisk) -> None:
    blobs = BlobStore(small_disk.folder / "blobs")
    data = os.urandom(3 * MIB)
    with pytest.raises(StorageError, match="the disk is full"):
        blobs.put(data)
    assert not blobs.has(sha256_hex(data))
    assert blobs.clean() == 0
    assert blobs.has(blobs.put(data[:MIB]))


def test_a_read_only_disk_under_sqlite_is_said(small_disk: SmallDisk, open_store: MakeStore) -> None:
    url = f"sqlite:///{small_disk.folder / 'fedmap.db'}"
    store = open_store(url)
    store.prepare()
    store.close()
    small_disk.make_read_only()
    error = fail(open_store(url))
    assert "read-only" in error.message or "cannot be opened" in error.message
    assert schema_status(url).state == "current"


def test_a_read_only_postgresql_is_said(
    postgres_server: PostgresServer, postgres_url: str, open_store: MakeStore
) -> None:
    store = open_store(postgres_url)
    store.prepare()
    store.close()
    name = read_url(postgres_url).url.database or ""
    change = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
    postgres_server.execute(change.format(sql.Identifier(name)))
    assert "is read-only" in fail(store).message


LIMITED = """
import resource, sys
from pathlib import Path
from fedmap_aggregator.store import BlobStore, Store
from fedmap.errors import StorageError
folder = Path(sys.argv[1])
store = Store(f"sqlite:///{folder / 'fedmap.db'}", BlobStore(folder / "blobs"))
store.prepare()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    for number in range(1000):
        with store.transaction() as transaction:
            transaction.audit.append("aggregator", "write", "x" * 10_000, {}, number)
except StorageError as error:
    sys.stdout.write(f"{number} {error}")
"""


def test_a_file_that_may_not_grow_is_said_and_loses_nothing(tmp_path: Path, open_store: MakeStore) -> None:
    said = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    number, _, words = said.partition(" ")
    assert "disk" in words
    assert "hint: " in words
    with open_store(f"sqlite:///{tmp_path / 'fedmap.db'}").reading() as transaction:
        assert transaction.audit.verify().entries == int(number) > 0


def test_a_damaged_sqlite_file_is_said(tmp_path: Path, open_store: MakeStore) -> None:
    path = tmp_path / "fedmap.db"
    path.write_bytes(b"a text file that somebody put here " * 200)
    with pytest.raises(StorageError, match="damaged or not a database") as caught:
        open_store(f"sqlite:///{path}").prepare()
    assert "backup" in caught.value.hint


def test_a_sqlite_path_through_a_file_is_said(tmp_path: Path, open_store: MakeStore) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="not a folder"):
        open_store(f"sqlite:///{tmp_path / 'file' / 'fedmap.db'}").prepare()


def test_a_database_that_was_never_prepared_is_said(database_url: str, open_store: MakeStore) -> None:
    assert "does not have the tables" in fail(open_store(database_url)).message


def test_an_unreachable_postgresql_is_said_without_the_password(open_store: MakeStore) -> None:
    with socket.socket() as taken:  # bound and not listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://kim:{SECRET}@127.0.0.1:{taken.getsockname()[1]}/fedmap"
        store = open_store(url)
        for use in (store.prepare, lambda: schema_status(url)):
            with pytest.raises(StorageError, match="cannot be reached") as caught:
                use()
            assert SECRET not in everything_said(caught.value)
            assert "host and port" in caught.value.hint


def test_a_refused_login_is_said_without_the_password(
    postgres_server: PostgresServer, open_store: MakeStore
) -> None:
    postgres_server.execute(sql.SQL("CREATE ROLE secret LOGIN PASSWORD 'right'"))
    try:
        error = fail(open_store(postgres_server.url("postgres", "secret", SECRET)))
    finally:
        postgres_server.execute(sql.SQL("DROP ROLE secret"))
    assert "refuses the login" in error.message
    assert SECRET not in everything_said(error)


def test_a_user_without_rights_is_said(
    postgres_server: PostgresServer, postgres_url: str, open_store: MakeStore
) -> None:
    database = read_url(postgres_url).url.database or ""
    postgres_server.execute(sql.SQL("CREATE ROLE guest LOGIN"))
    try:
        store = open_store(postgres_server.url(database, "guest"))
        with pytest.raises(StorageError, match="may not do this"):
            store.prepare()
        store.close()
    finally:
        postgres_server.execute(sql.SQL("DROP ROLE guest"))


def test_a_connection_that_is_cut_fails_one_transaction_and_not_the_next(
    postgres_server: PostgresServer, postgres_url: str, open_store: MakeStore
) -> None:
    store = open_store(postgres_url)
    store.prepare()
    database = read_url(postgres_url).url.database or ""
    cut = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}").format(
        sql.Literal(database)
    )

    def write_while_cut() -> None:
        with store.transaction() as transaction:
            transaction.audit.append("aggregator", "before", "", {}, NOW)
            postgres_server.execute(cut)
            transaction.audit.append("aggregator", "after", "", {}, NOW)

    with pytest.raises(StorageError, match="cannot be reached"):
        write_while_cut()
    postgres_server.execute(cut)
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "again", "", {}, NOW)
        assert [entry.action for entry in transaction.audit.entries()] == ["again"]
