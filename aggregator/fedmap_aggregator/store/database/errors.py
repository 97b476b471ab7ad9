"""What a database refuses, in plain words with the next step: SQLite's error names and PostgreSQL's codes.

The driver's own text is never passed on; it may quote what was being written.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fedmap.errors import StorageError
from fedmap_aggregator.store.database.url import Database

Said = tuple[str, str]  # what happened, what to do; {place} is the database

_BUSY: Said = (
    "{place} is locked by another process",
    "Find what holds it (a backup, a second aggregator, an open shell), let it end, and try again.",
)
_FULL: Said = (
    "{place}: the disk is full",
    "Free space on the database's disk, then try again; nothing written before is lost.",
)
_READ_ONLY: Said = (
    "{place} is read-only",
    "Let the aggregator's account write to the file and its folder; of PostgreSQL use the primary.",
)
_IO: Said = (
    "{place}: the disk failed to read or write",
    "Check the database's disk, its quota and the system's log; then try again.",
)
_DAMAGED: Said = (
    "{place} is damaged or not a database",
    "Check the path; if it is right, restore the newest backup.",
)
_UNREACHABLE: Said = (
    "{place} cannot be reached",
    "Check that the database server runs, and the host and port of its URL.",
)
_REFUSED_LOGIN: Said = (
    "{place} refuses the login",
    "Check the user name and the password of the database URL, and the server's pg_hba.conf.",
)
_ABSENT: Said = ("{place} does not exist", "Create it (createdb), or mend the name in the database URL.")
_DENIED: Said = (
    "{place}: the database user may not do this",
    "Make the user the owner of the database, or grant it CREATE and USAGE on its schema.",
)
_CROWDED: Said = (
    "{place} takes no more connections",
    "Raise max_connections on the server, or end what uses them up.",
)
_RULE: Said = (
    "{place} refused a row that breaks a rule of its tables",
    "This is a fault of the software or of a database edited by hand: keep the log and report it.",
)
_SCHEMA: Said = (
    "{place} does not have the tables that this version expects",
    "Run fedmap-aggregator doctor; use a database that no other software uses.",
)

# By the beginning of SQLite's error name.
_SQLITE: tuple[tuple[str, Said], ...] = (
    ("SQLITE_BUSY", _BUSY),
    ("SQLITE_LOCKED", _BUSY),
    ("SQLITE_FULL", _FULL),
    ("SQLITE_READONLY", _READ_ONLY),
    ("SQLITE_IOERR", _IO),
    ("SQLITE_CORRUPT", _DAMAGED),
    ("SQLITE_NOTADB", _DAMAGED),
    (
        "SQLITE_CANTOPEN",
        (
            "{place} cannot be opened",
            "Check that its folder exists and that the aggregator's account may read and write there.",
        ),
    ),
    ("SQLITE_CONSTRAINT", _RULE),
    ("SQLITE_ERROR", _SCHEMA),
)
# By the beginning of the SQLSTATE: longer codes first.
_POSTGRES: tuple[tuple[str, Said], ...] = (
    ("55P03", _BUSY),
    ("40P01", _BUSY),
    ("57014", _BUSY),
    ("53100", _FULL),
    ("53300", _CROWDED),
    ("53", ("{place}: the server lacks memory or space", "See the log of the database server.")),
    ("25006", _READ_ONLY),
    ("58", _IO),
    ("XX", _DAMAGED),
    ("28", _REFUSED_LOGIN),
    ("3D000", _ABSENT),
    ("42501", _DENIED),
    ("42", _SCHEMA),
    ("23", _RULE),
    ("57", _UNREACHABLE),
    ("08", _UNREACHABLE),
)
# A failed login has no SQLSTATE in the driver; the server's words are all there is.
_POSTGRES_WORDS: tuple[tuple[str, Said], ...] = (
    ("authentication failed", _REFUSED_LOGIN),
    ("no password supplied", _REFUSED_LOGIN),
    ("no pg_hba.conf entry", _REFUSED_LOGIN),
    ("too many clients", _CROWDED),
    ("remaining connection slots", _CROWDED),
    ("does not exist", _ABSENT),
)


def database_error(error: DBAPIError | PoolTimeout, database: Database) -> StorageError:
    """The same failure as a StorageError."""
    happened, hint = _said(error, database)
    return StorageError(happened.format(place=database.place), hint=hint)


def busy_error(database: Database) -> StorageError:
    """Another writer has held the database for as long as anybody may wait."""
    return StorageError(_BUSY[0].format(place=database.place), hint=_BUSY[1])


def _said(error: DBAPIError | PoolTimeout, database: Database) -> Said:
    if isinstance(error, PoolTimeout):
        return "{place}: all connections were in use for too long", "Look for a call that hangs in the log."
    cause = error.orig
    if database.is_sqlite:
        name = getattr(cause, "sqlite_errorname", None) if isinstance(cause, sqlite3.Error) else None
        return _first(_SQLITE, name or "") or _other(name or type(cause).__name__)
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        return _first(_POSTGRES, state) or _other(state)
    if isinstance(error, IntegrityError):
        return _RULE
    words = str(cause)
    return next((said for word, said in _POSTGRES_WORDS if word in words), _UNREACHABLE)


def _first(table: tuple[tuple[str, Said], ...], code: str) -> Said | None:
    return next((said for start, said in table if code.startswith(start)), None)


def _other(code: str) -> Said:
    return f"{{place}} failed ({code})", "See the log of the database, and run fedmap-aggregator doctor."
