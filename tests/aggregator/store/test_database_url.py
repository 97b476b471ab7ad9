"""Which databases are taken, and that no message ever shows a password, not even of a URL that is misread."""

from __future__ import annotations

import traceback

import pytest

from fedmap.errors import ConfigError, FedmapError
from fedmap_aggregator.store import BlobStore, Store, read_url, schema_status

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:////var/lib/fedmap/fedmap.db", "the SQLite database /var/lib/fedmap/fedmap.db"),
        ("sqlite:///fedmap.db", "the SQLite database fedmap.db"),
        ("postgresql://kim:hunter2@db:5433/fedmap", "the PostgreSQL database fedmap at db:5433"),
        ("postgres://kim:hunter2@db/fedmap", "the PostgreSQL database fedmap at db"),
        ("postgresql+psycopg://kim:hunt%40er2@db/fedmap", "the PostgreSQL database fedmap at db"),
        ("postgresql://kim:hunter2/x@db/fedmap", "the PostgreSQL database fedmap at db"),
        ("postgresql:///fedmap?host=/run/pg&password=hunter2", "the PostgreSQL database fedmap at /run/pg"),
        ("postgresql:///fedmap", "the PostgreSQL database fedmap at the local socket"),
    ],
)
def test_a_database_is_named_without_user_and_password(url: str, place: str) -> None:
    database = read_url(url)
    assert database.place == place
    assert SECRET not in repr(database)
    assert "kim" not in repr(database)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "neither"),
        ("hunter2", "neither"),
        ("mysql://kim:hunter2@db/fedmap", "neither"),
        ("sqlite://", "one file"),
        ("sqlite:///:memory:", "one file"),
        ("sqlite:///x.db?mode=memory&key=hunter2", "one file"),
        ("sqlite://hunter2/fedmap.db", "one file"),
        ("postgresql://kim:hunter2@db", "no database"),
        ("postgresql://kim:hunter2@db/", "no database"),
        ("postgresql://kim:p@hunter2@db/fedmap", "%40"),
        ("postgresql://kim:p@hunter2/x@db/fedmap", "%40"),
        ("postgresql://kim:p@hunter2?x@db/fedmap", "%40"),
        ("postgresql://kim:p@db:hunter2/fedmap", "cannot be read"),
        ("postgresql:/kim:hunter2@db/fedmap", "neither"),
    ],
)
def test_an_unreadable_url_is_refused_without_being_shown(url: str, said: str, blobs: BlobStore) -> None:
    for use in (read_url, schema_status, lambda text: Store(text, blobs)):
        with pytest.raises(ConfigError, match=said) as caught:
            use(url)
        assert SECRET not in everything_said(caught.value)
        assert "postgresql://" in caught.value.hint


def everything_said(error: FedmapError) -> str:
    """The error as text, with all that led to it."""
    return "".join(traceback.TracebackException.from_exception(error).format()) + repr(error) + error.hint
