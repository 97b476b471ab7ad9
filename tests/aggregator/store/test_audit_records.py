"""The audit log in both databases: what someone with SQL could do to it is found."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from fedmap.errors import IntegrityError
from fedmap.trust.audit import START
from fedmap_aggregator.store import Store, read_url
from tests.aggregator.store.conftest import NOW


def fill(store: Store, count: int = 5) -> None:
    for number in range(count):
        with store.transaction() as transaction:
            detail = {"terms": "ab12", "site\x00": "Zürich \x00"}
            transaction.audit.append("operator:kim\x00", "approve", f"study-{number}", detail, NOW + number)


def tamper(url: str, statement: str) -> None:
    engine = create_engine(read_url(url).url)
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()


def test_an_empty_log_has_the_starting_head(store: Store) -> None:
    with store.reading() as transaction:
        head = transaction.audit.verify()
    assert (head.entries, head.hash) == (0, START)


def test_entries_come_back_with_their_chain_intact(store: Store) -> None:
    fill(store)
    with store.reading() as transaction:
        entries = list(transaction.audit.entries())
        head = transaction.audit.verify()
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert (head.entries, head.hash) == (5, entries[-1].hash)
    assert entries[0].detail["site\N{REPLACEMENT CHARACTER}"] == "Zürich \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE audit SET actor = 'operator:eve' WHERE seq = 3", "entry 3"),
        ("UPDATE audit SET at_unix_ms = at_unix_ms + 1 WHERE seq = 1", "entry 1"),
        ("UPDATE audit SET detail_json = '{}' WHERE seq = 2", "entry 2"),
        ("UPDATE audit SET detail_json = '[1]' WHERE seq = 2", "entry 2"),
        ("UPDATE audit SET detail_json = 'no' WHERE seq = 4", "entry 4"),
        ("UPDATE audit SET hash = previous WHERE seq = 5", "entry 5"),
        ("DELETE FROM audit WHERE seq = 1", "entry 1"),
        ("DELETE FROM audit WHERE seq = 3", "entry 3"),
    ],
)
def test_a_changed_or_removed_entry_is_named(
    store: Store, database_url: str, statement: str, named: str
) -> None:
    fill(store)
    tamper(database_url, statement)
    with pytest.raises(IntegrityError, match=named), store.reading() as transaction:
        transaction.audit.verify()


def test_a_log_cut_off_at_its_end_has_another_head(store: Store, database_url: str) -> None:
    fill(store)
    with store.reading() as transaction:
        before = transaction.audit.verify()
    tamper(database_url, "DELETE FROM audit WHERE seq = 5")
    with store.reading() as transaction:
        after = transaction.audit.verify()
    assert after.entries == before.entries - 1
    assert after.hash != before.hash


def test_a_log_longer_than_one_fetch_is_read_whole(store: Store) -> None:
    with store.transaction() as transaction:
        for number in range(1201):
            transaction.audit.append("aggregator", "close", f"round-{number}", {}, NOW)
    with store.reading() as transaction:
        assert transaction.audit.verify().entries == 1201
