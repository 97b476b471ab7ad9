"""Connections that keep their promises: a commit is on the disk, writers queue up, readers see one moment.

Writers take one lock for the whole database at their start, on both kinds: SQLite by BEGIN IMMEDIATE,
PostgreSQL by an advisory lock. Nearly every write also goes into the one audit chain, so little could run in
parallel anyway; and with one lock there are no deadlocks. What the tables hold is not known here.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool

from fedmap.errors import ConfigError, StorageError
from fedmap.files.durable import make_folder, storage_errors, sync_folder
from fedmap_aggregator.store.database.errors import database_error
from fedmap_aggregator.store.database.url import Database

_CONNECTIONS = 16
_CONNECT_SECONDS = 10
_ASK_AGAIN_SECONDS = 0.01
_PRIMARY_CODE = 0xFF  # of SQLite's error codes; the rest says more
_ADVISORY_KEY = 0x6665646D6170  # "fedmap"
_WRITING = "fedmap_writing"


def make_engine(database: Database, busy_seconds: float) -> Engine:
    """An engine that has not connected yet. `busy_seconds` is how long a writer waits for another."""
    if database.is_sqlite:
        return _sqlite_engine(database, busy_seconds)
    return _postgres_engine(database, busy_seconds)


def make_probe(database: Database) -> Engine:
    """An engine that can only look: it creates no file, takes no lock and changes nothing."""
    if not database.is_sqlite:
        return _postgres_engine(database, busy_seconds=_CONNECT_SECONDS)
    # Without a write-ahead log nobody has the file open, and `immutable` keeps SQLite from making one.
    wal = database.file.with_name(database.file.name + "-wal")
    mode = "mode=ro" if wal.exists() else "immutable=1"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            f"{database.file.absolute().as_uri()}?{mode}", uri=True, check_same_thread=False
        )

    return create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)


def make_private_file(database: Database) -> None:
    """SQLite: the file for its owner only, before SQLite makes it for all. Its log gets the same mode."""
    path = database.file
    make_folder(path.parent)
    with storage_errors(path):
        descriptor = os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
        os.close(descriptor)
        sync_folder(path.parent)


@contextmanager
def writing(engine: Engine, database: Database) -> Iterator[Connection]:
    """One transaction that may write; it commits at the end of the block, and not at all after an error."""
    with _translated(database), engine.connect() as connection:
        connection.execution_options(**{_WRITING: True})
        with connection.begin():
            yield connection


@contextmanager
def reading(engine: Engine, database: Database) -> Iterator[Connection]:
    """One transaction that sees the database as it was at one moment, and cannot write."""
    with _translated(database), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def _translated(database: Database) -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        raise database_error(error, database) from error


def _sqlite_engine(database: Database, busy_seconds: float) -> Engine:
    engine = create_engine(
        database.url,
        connect_args={"timeout": busy_seconds, "check_same_thread": False},
        pool_size=_CONNECTIONS,
        max_overflow=0,
        hide_parameters=True,
    )

    def on_connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
        if _switch_to_log(connection, busy_seconds) != "wal":
            raise StorageError(
                f"{database.place}: its file system cannot keep a write-ahead log",
                hint="Put the state folder on a local disk, or use PostgreSQL.",
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten in the file

    def on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITING, False)
        connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _switch_to_log(connection: sqlite3.Connection, busy_seconds: float) -> str:
    """Asks for a write-ahead log and returns what SQLite made of it.

    Where two switch a new file at once, SQLite refuses one of them at once: each holds the file for reading
    and would wait for the other for ever. So it is for us to ask again.
    """
    until = time.monotonic() + busy_seconds
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > until:
                raise
            time.sleep(_ASK_AGAIN_SECONDS)
        else:
            return str(mode)


def _postgres_engine(database: Database, busy_seconds: float) -> Engine:
    # A server that vanished is noticed; what the URL says itself goes first.
    defaults: dict[str, Any] = {
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": 30_000,
        "application_name": "fedmap-aggregator",
    }
    options = {name: value for name, value in defaults.items() if name not in database.url.query}
    try:
        engine = create_engine(
            database.url,
            connect_args=options,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            hide_parameters=True,
        )
    except (ImportError, InvalidRequestError) as error:
        raise ConfigError(
            "the database URL",
            ("PostgreSQL needs the driver psycopg, which is not installed",),
            hint="Run pip install 'fedmap-aggregator[postgres]'.",
        ) from error
    wait = f"{max(1, round(busy_seconds * 1000))}ms"

    def on_begin(connection: Connection) -> None:
        if not connection.get_execution_options().get(_WRITING, False):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        connection.execute(_SETTINGS, {"wait": wait})
        connection.execute(_LOCK, {"key": _ADVISORY_KEY})

    event.listen(engine, "begin", on_begin)
    return engine


# A server may be set up to forget commits in a power cut; ours are to last.
_SETTINGS = text(
    "SELECT set_config('lock_timeout', :wait, true), set_config('synchronous_commit', "
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)"
)
_LOCK = text("SELECT pg_advisory_xact_lock(:key)")
