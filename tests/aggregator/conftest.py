"""Databases for tests of the aggregator, of both kinds for a test that asks for `database_url`; a centre."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aggregator.centre import Centre, Site, centre_in
from tests.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'fedmap.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    """An aggregator without gRPC that nobody has joined yet."""
    folder = tmp_path / "centre"
    folder.mkdir()
    with centre_in(folder) as opened:
        yield opened


@pytest.fixture
def pair(centre: Centre) -> tuple[Site, Site]:
    """Its first two sites."""
    return centre.enrolled("north"), centre.enrolled("south")
