"""Tables and their history: the migrations make what the code expects, and looking changes nothing."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text

from fedmap.errors import IncompatibleError, StorageError
from fedmap.files.digests import file_sha256
from fedmap_aggregator.store import BlobStore, Store, read_url, schema_status
from fedmap_aggregator.store.database import schema
from fedmap_aggregator.store.database.tables import VERSION_TABLE, metadata
from tests.aggregator.store.conftest import NOW, MakeStore
from tests.postgres import PostgresServer


@contextmanager
def directly(url: str) -> Iterator[Connection]:
    engine = create_engine(read_url(url).url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def test_the_migrations_make_exactly_the_tables_of_the_code(store: Store, database_url: str) -> None:
    assert store.place
    with directly(database_url) as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []
        inspector = inspect(connection)
        for table in metadata.tables.values():
            made = {check["name"] for check in inspector.get_check_constraints(table.name)}
            wanted = {
                f"ck_{table.name}_{name}" for name in ("tier", "state", "status") if name in table.columns
            }
            assert made == (wanted if table.name != "studies" else set())
            keys = {key["name"] for key in inspector.get_foreign_keys(table.name)}
            assert keys == {key.constraint.name for key in table.foreign_keys if key.constraint is not None}


def test_preparing_again_changes_nothing(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "start", "", {}, NOW)
    assert store.prepare().schema.state == "current"
    with store.reading() as transaction:
        assert transaction.audit.verify().entries == 1


def test_status_of_a_database_without_tables_is_missing(database_url: str) -> None:
    status = schema_status(database_url)
    assert (status.state, status.found) == ("missing", None)


def test_status_after_preparing_is_current(store: Store, database_url: str) -> None:
    status = schema_status(database_url)
    assert (status.state, status.found) == ("current", status.expected)
    store.close()
    assert schema_status(database_url) == status


def test_a_database_of_newer_software_is_told_and_refused(
    store: Store, database_url: str, open_store: MakeStore
) -> None:
    store.close()
    with directly(database_url) as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    assert schema_status(database_url).state == "newer"
    with pytest.raises(IncompatibleError, match="newer version") as caught:
        open_store(database_url).prepare()
    assert "backup" in caught.value.hint
    assert schema_status(database_url).found == "9999"


def test_a_failed_upgrade_leaves_no_half_made_tables(database_url: str, open_store: MakeStore) -> None:
    with directly(database_url) as connection:
        connection.execute(text("CREATE TABLE results (something INTEGER)"))
    with pytest.raises(StorageError, match="does not have the tables"):
        open_store(database_url).prepare()
    with directly(database_url) as connection:
        assert inspect(connection).get_table_names() == ["results"]


def test_an_older_database_is_told_and_upgraded_with_its_rows(
    store: Store, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "start", "", {}, NOW)
    newer = tmp_path / "50% newer"
    shutil.copytree(schema._MIGRATIONS, newer)
    (newer / "versions" / "r9998_later.py").write_text(
        "from alembic import op\n"
        "import sqlalchemy as sa\n"
        "revision, down_revision = '9998', '0003'\n"
        "def upgrade():\n"
        "    with op.batch_alter_table('sites') as batch:\n"
        "        batch.add_column(sa.Column('note', sa.Text))\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(schema, "_MIGRATIONS", newer)
    status = schema_status(database_url)
    assert (status.state, status.found, status.expected) == ("needs upgrade", "0003", "9998")
    assert store.prepare().schema == status
    assert schema_status(database_url).state == "current"
    with store.reading() as transaction:
        assert transaction.audit.verify().entries == 1


def test_looking_at_a_sqlite_database_changes_no_file(tmp_path: Path, blobs: BlobStore) -> None:
    path = tmp_path / "state" / "fedmap.db"
    url = f"sqlite:///{path}"
    store = Store(url, blobs)
    store.prepare()
    store.close()
    before = {file.name: (file_sha256(file), file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    folder = path.parent.stat().st_mtime_ns
    assert schema_status(url).state == "current"
    after = {file.name: (file_sha256(file), file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    assert (after, path.parent.stat().st_mtime_ns) == (before, folder)


def test_looking_at_a_sqlite_database_that_is_in_use_sees_the_newest_state(
    sqlite_url: str, open_store: MakeStore
) -> None:
    store = open_store(sqlite_url)
    store.prepare()
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "start", "", {}, NOW)
        assert schema_status(sqlite_url).state == "current"


def test_looking_for_a_sqlite_database_does_not_make_one(sqlite_url: str, tmp_path: Path) -> None:
    assert schema_status(sqlite_url).state == "missing"
    assert list(tmp_path.iterdir()) == []


def test_looking_at_something_that_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "fedmap.db").write_bytes(b"not a database, but long enough to look like one " * 50)
    with pytest.raises(StorageError, match="damaged or not a database"):
        schema_status(f"sqlite:///{tmp_path / 'fedmap.db'}")


def test_looking_into_a_folder_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        schema_status(f"sqlite:///{tmp_path / 'nowhere' / 'fedmap.db'}")


def test_looking_at_an_unknown_postgresql_database_is_said(postgres_server: PostgresServer) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        schema_status(postgres_server.url("nowhere"))


def test_the_sqlite_files_are_for_their_owner_only(sqlite_url: str, open_store: MakeStore) -> None:
    store = open_store(sqlite_url)
    store.prepare()
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "start", "", {}, NOW)
    files = list(read_url(sqlite_url).file.parent.glob("fedmap.db*"))
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_sqlite_keeps_its_promises_on_every_connection(sqlite_url: str, open_store: MakeStore) -> None:
    store = open_store(sqlite_url)
    store.prepare()
    for mode in (store.transaction, store.reading):
        with mode() as transaction:
            ask = transaction.sites._connection.exec_driver_sql
            assert ask("PRAGMA journal_mode").scalar() == "wal"
            assert ask("PRAGMA synchronous").scalar() == 2  # FULL
            assert ask("PRAGMA foreign_keys").scalar() == 1
            assert ask("PRAGMA busy_timeout").scalar() == 15_000


def test_postgresql_commits_last_on_a_server_that_is_set_to_forget(
    postgres_server: PostgresServer, postgres_url: str, open_store: MakeStore
) -> None:
    name = read_url(postgres_url).url.database
    with directly(postgres_url) as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    assert postgres_server.folder.exists()
    with open_store(postgres_url).transaction() as transaction:
        assert transaction.sites._connection.scalar(text("SHOW synchronous_commit")) == "on"
