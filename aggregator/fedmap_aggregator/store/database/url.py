"""From the configured URL to a database that can be named in a message without its password.

Only SQLite files and PostgreSQL are taken. What is wrong with a URL is said without quoting it: a part that
was misread may be a piece of the password. Nothing is opened here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from fedmap.errors import ConfigError

POSTGRES = "postgresql+psycopg"
_HINT = "Write sqlite:////absolute/path/fedmap.db or postgresql://USER:PASSWORD@HOST:5432/DATABASE."


@dataclass(frozen=True, repr=False)
class Database:
    """Where the state is kept."""

    url: URL
    place: str  # for messages: never a user or a password

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path:
        """SQLite only."""
        if not self.is_sqlite or self.url.database is None:
            raise ValueError("only SQLite has a file")
        return Path(self.url.database)

    def __repr__(self) -> str:
        return f"Database({self.place})"


def read_url(text: str) -> Database:
    """The database that a URL names; ConfigError where it cannot be one of ours."""
    scheme = text.partition("://")[0].partition("+")[0].lower()
    if scheme in ("postgres", "postgresql"):
        return _postgres(text)
    if scheme == "sqlite":
        return _sqlite(text)
    raise _fault("it begins with neither sqlite:// nor postgresql://")


def _sqlite(text: str) -> Database:
    url = _parsed(text)
    if url.host or not url.database or url.database == ":memory:" or url.query:
        raise _fault("a SQLite URL names one file and nothing else")
    return Database(url.set(drivername="sqlite+pysqlite"), f"the SQLite database {url.database}")


def _postgres(text: str) -> Database:
    # With a second @ it cannot be told where the password ends, and a part of it would be shown as the host.
    if text.count("@") > 1:
        raise _fault("it has more than one @: write @ as %40 in the user name and the password")
    url = _parsed(text)
    if not url.database:
        raise _fault("it names no database")
    host = url.host or _one(url.query.get("host")) or "the local socket"
    port = f":{url.port}" if url.port is not None else ""
    place = f"the PostgreSQL database {url.database} at {host}{port}"
    return Database(url.set(drivername=POSTGRES), place)


def _parsed(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise _fault("it cannot be read") from None


def _one(value: str | tuple[str, ...] | None) -> str:
    return value if isinstance(value, str) else ",".join(value or ())


def _fault(problem: str) -> ConfigError:
    return ConfigError("the database URL", (problem,), hint=_HINT)
