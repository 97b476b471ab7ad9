"""Stores for the shared suite, and rows to put into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fedmap.files.digests import sha256_hex
from fedmap_aggregator.store import AnswerRow, AnswerStatus, BlobStore, SiteRow, Store

NOW = 1_700_000_000_000


class MakeStore(Protocol):
    """Opens a store; it is closed after the test."""

    def __call__(self, url: str, busy_seconds: float = 15.0) -> Store: ...


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def open_store(blobs: BlobStore) -> Iterator[MakeStore]:
    """Stores as separate processes would have them: each with connections and locks of its own."""
    opened: list[Store] = []

    def make(url: str, busy_seconds: float = 15.0) -> Store:
        store = Store(url, blobs, busy_seconds)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(database_url: str, open_store: MakeStore) -> Store:
    store = open_store(database_url)
    store.prepare()
    return store


@pytest.fixture
def other_store(store: Store, database_url: str, open_store: MakeStore) -> Store:  # noqa: ARG001
    """A second one on the same database."""
    return open_store(database_url)


def a_site(name: str = "leeds") -> SiteRow:
    return SiteRow(name, 1, "north", "active", "0.1.0")


def an_answer(
    site: str = "leeds",
    status: AnswerStatus = "accepted",
    content: bytes = b"answer",
    attempt: int = 1,
    task: str = "round-1",
    tensors_digest: str = "",
) -> AnswerRow:
    return AnswerRow(
        study="stroke",
        task=task,
        site=site,
        attempt=attempt,
        digest=sha256_hex(content),
        status=status,
        answer=content,
        tensors_digest=tensors_digest,
        norm=0.1 if status == "accepted" else None,
        reason="" if status in ("accepted", "abstained") else "it diverged",
        received_at=NOW,
    )


def add_study(store: Store, name: str = "stroke") -> None:
    with store.transaction() as transaction:
        transaction.studies.insert(name, '{"rounds":2}', sha256_hex(b"terms"), '{"phase":"approvals"}')
