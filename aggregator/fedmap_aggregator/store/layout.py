"""Where the configuration puts the aggregator's state: database, blobs, lock. Opens the store, runs nothing.

For `wiring` and for the commands that work on the state folder without the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmap.errors import ConfigError, StateError, StorageError
from fedmap.files.durable import FolderLock, read_file
from fedmap_aggregator.config import NOT_THERE, AggregatorConfig
from fedmap_aggregator.store import BlobStore, Store, read_url, schema_status

DATABASE_NAME = "fedmap.db"


def database_url(config: AggregatorConfig) -> str:
    """The URL in effect: the given one, that of url_file, or SQLite in the state folder."""
    if config.database.url:
        return config.database.url
    if config.database.url_file is None:
        return f"sqlite:///{config.server.state.absolute() / DATABASE_NAME}"
    text = read_file(config.database.url_file).decode("utf-8", "replace").strip()
    if not text or len(text.splitlines()) != 1:
        raise ConfigError(
            str(config.database.url_file),
            ("it must hold exactly one line, the database URL",),
            hint="Write postgresql://USER:PASSWORD@HOST:5432/DATABASE into it, and nothing else.",
        )
    return text


def database_files(config: AggregatorConfig) -> frozenset[Path]:
    """SQLite's own files, links followed; none with PostgreSQL."""
    database = read_url(database_url(config))
    if not database.is_sqlite:
        return frozenset()
    file = database.file.resolve()
    return frozenset(file.with_name(file.name + end) for end in ("", "-wal", "-shm", "-journal"))


def blob_folder(config: AggregatorConfig) -> Path:
    return config.server.state / "blobs"


def state_lock(config: AggregatorConfig) -> FolderLock:
    """Held by the one service that runs on this state folder."""
    return FolderLock(config.server.state / "lock")


def upkeep_lock(config: AggregatorConfig) -> FolderLock:
    """Held by a backup and by a deletion: what one copies the other must not remove meanwhile."""
    return FolderLock(config.server.state / "upkeep.lock")


def restoring_mark(state: Path) -> Path:
    """There while a restore is under way, and after one that was interrupted."""
    return state / ".restoring"


def check_restored(config: AggregatorConfig) -> None:
    """StateError where a restore was interrupted: half a state folder is not served."""
    if restoring_mark(config.server.state).exists():
        raise StateError(
            f"a restore into {config.server.state} was interrupted",
            hint="run the same `fedmap-aggregator restore` again: it begins anew",
        )


def make_store(config: AggregatorConfig) -> Store:
    """The store, not opened yet. StorageError before `init`, StateError in the middle of a restore."""
    if not config.server.state.is_dir():
        raise StorageError(f"{config.server.state} does not exist", hint=NOT_THERE)
    check_restored(config)
    return Store(database_url(config), BlobStore(blob_folder(config)))


@contextmanager
def open_store(config: AggregatorConfig) -> Iterator[Store]:
    """The store beside a service that may be running; its tables are made first where there are none yet."""
    store = make_store(config)
    try:
        if schema_status(database_url(config)).state != "current":
            with state_lock(config):
                store.prepare()
        yield store
    finally:
        store.close()
