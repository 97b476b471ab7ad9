"""Which tables a database has, and bringing them up to date: Alembic, run by the program and never by hand.

There is no way back to an older schema: a backup is. A database that a newer version has changed is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from fedmap.errors import IncompatibleError
from fedmap_aggregator.store.database.engine import make_probe, reading
from fedmap_aggregator.store.database.tables import VERSION_TABLE
from fedmap_aggregator.store.database.url import Database, read_url

CONNECTION = "connection"
"""The attribute by which the migrations' environment is given its connection."""

_MIGRATIONS = Path(__file__).parent / "migrations"

SchemaState = Literal["missing", "current", "needs upgrade", "newer"]


@dataclass(frozen=True)
class SchemaStatus:
    """How a database's tables compare with what this software expects."""

    state: SchemaState
    found: str | None  # revision; None where there is none yet
    expected: str


def schema_status(url: str) -> SchemaStatus:
    """Looks without touching: no file is made, no lock taken. StorageError where it cannot look."""
    database = read_url(url)
    if database.is_sqlite and _is_absent(database.file):
        return _compare(None)
    engine = make_probe(database)
    try:
        with reading(engine, database) as connection:
            return _compare(revision_of(connection))
    finally:
        engine.dispose()


def upgrade(connection: Connection, database: Database, to: str = "head") -> SchemaStatus:
    """Brings the tables up to date inside the caller's transaction; returns how they were found."""
    status = _compare(revision_of(connection))
    if status.state == "newer":
        raise IncompatibleError(
            f"{database.place} was made by a newer version of this software (its revision is {status.found}, "
            f"the newest one known here is {status.expected})",
            hint="Install the version of fedmap that was in use last, or restore the backup from before it.",
        )
    if status.state != "current":
        config = _config()
        config.attributes[CONNECTION] = connection
        command.upgrade(config, to)
    return status


def is_known(revision: str) -> bool:
    """Whether this software can bring tables of that revision up to date."""
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return any(script.revision == revision for script in scripts)


def _is_absent(path: Path) -> bool:
    return not path.exists() and path.parent.is_dir()


def revision_of(connection: Connection) -> str | None:
    """Of the tables that are there; None where there are none."""
    return MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE}
    ).get_current_revision()


def _compare(found: str | None) -> SchemaStatus:
    scripts = ScriptDirectory.from_config(_config())
    expected = scripts.get_current_head()
    if expected is None:
        raise RuntimeError("the package holds no migrations")
    known = {script.revision for script in scripts.walk_revisions()}
    state: SchemaState = "needs upgrade"
    if found is None:
        state = "missing"
    elif found == expected:
        state = "current"
    elif found not in known:
        state = "newer"
    return SchemaStatus(state, found, expected)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config
