"""Several at once, on both databases. Each thread has a store of its own, as separate processes would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from fedmap.errors import ConflictError, FedmapError, StorageError, TokenError
from fedmap_aggregator.store import Prepared, Store
from tests.aggregator.store.conftest import NOW, MakeStore, a_site, add_study, an_answer

THREADS = 8
SECONDS = 60

Result = TypeVar("Result")


def at_once(work: Callable[[int], Result], count: int = THREADS) -> list[Result | FedmapError]:
    """What each thread got or was refused with; all start together."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Result | FedmapError:
        barrier.wait(SECONDS)
        try:
            return work(number)
        except FedmapError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.fixture
def stores(store: Store, database_url: str, open_store: MakeStore) -> list[Store]:
    return [store, *(open_store(database_url) for _ in range(THREADS - 1))]


def test_of_many_who_take_one_token_exactly_one_gets_it(stores: list[Store]) -> None:
    with stores[0].transaction() as transaction:
        transaction.sites.upsert(a_site())
        transaction.invitations.add("hash-1", "leeds", 1, "", NOW + 1)

    def take(number: int) -> str:
        with stores[number].transaction() as transaction:
            return transaction.invitations.take("hash-1", NOW).site

    got = at_once(take)
    assert got.count("leeds") == 1
    assert sum(isinstance(one, TokenError) for one in got) == THREADS - 1


def test_of_many_who_save_one_study_one_wins_and_the_others_are_told(stores: list[Store]) -> None:
    add_study(stores[0])

    def save(number: int) -> int:
        with stores[number].reading() as transaction:
            version = transaction.studies.load("stroke").version
        loaded.wait(SECONDS)
        with stores[number].transaction() as transaction:
            transaction.studies.save("stroke", f'"{number}"', version)
        return number

    loaded = threading.Barrier(THREADS)
    got = at_once(save)
    (winner,) = [one for one in got if isinstance(one, int)]
    assert sum(isinstance(one, ConflictError) for one in got) == THREADS - 1
    with stores[0].reading() as transaction:
        study = transaction.studies.load("stroke")
    assert (study.state_json, study.version) == (f'"{winner}"', 2)


def test_the_audit_chain_stays_whole_with_many_writers(stores: list[Store]) -> None:
    def append(number: int) -> None:
        for turn in range(5):
            with stores[number].transaction() as transaction:
                transaction.audit.append("aggregator", "write", f"{number}-{turn}", {}, NOW)

    assert at_once(append) == [None] * THREADS
    with stores[0].reading() as transaction:
        assert transaction.audit.verify().entries == THREADS * 5


def test_threads_that_share_one_store_do_not_lose_writes(store: Store) -> None:
    add_study(store)

    def answer(number: int) -> None:
        with store.transaction() as transaction:
            transaction.answers.put(an_answer(f"site-{number}"))
            transaction.audit.append("site", "answer", f"site-{number}", {}, NOW)

    count = 40
    assert at_once(answer, count) == [None] * count
    with store.reading() as transaction:
        assert len(transaction.answers.list("stroke", "round-1")) == count
        assert transaction.audit.verify().entries == count


def test_the_same_answer_sent_twice_at_once_is_stored_once(stores: list[Store]) -> None:
    add_study(stores[0])

    def send(number: int) -> int:
        with stores[number].transaction() as transaction:
            row = an_answer()
            return transaction.answers.put(type(row)(**{**vars(row), "received_at": number})).received_at

    assert len(set(at_once(send))) == 1


def test_aggregators_that_start_together_make_the_tables_once(
    database_url: str, open_store: MakeStore
) -> None:
    fresh = [open_store(database_url) for _ in range(4)]
    got = at_once(lambda number: fresh[number].prepare(), 4)
    found = sorted(one.schema.state if isinstance(one, Prepared) else str(one) for one in got)
    assert found == ["current", "current", "current", "missing"]


def test_new_sqlite_files_that_several_open_at_once_refuse_nobody(
    tmp_path: Path, open_store: MakeStore
) -> None:
    for turn in range(20):  # the refusal comes in one turn of seven where nobody asks again
        url = f"sqlite:///{tmp_path}/{turn}.db"
        fresh = [open_store(url) for _ in range(4)]
        got = at_once(lambda number, fresh=fresh: fresh[number].prepare(), 4)  # type: ignore[misc]
        assert [one for one in got if not isinstance(one, Prepared)] == []


def test_a_reader_sees_one_moment_while_a_writer_goes_on(store: Store, other_store: Store) -> None:
    add_study(store)
    with store.reading() as reader:
        before = reader.studies.load("stroke")
        with other_store.transaction() as writer:
            writer.studies.save("stroke", '"new"', 1)
        assert reader.studies.load("stroke") == before
    with store.reading() as reader:
        assert reader.studies.load("stroke").version == 2


def test_a_reader_does_not_wait_for_a_writer(store: Store, other_store: Store) -> None:
    add_study(store)
    with store.transaction() as writer:
        writer.studies.save("stroke", '"new"', 1)
        with store.reading() as reader, other_store.reading() as other:
            assert reader.studies.load("stroke").version == other.studies.load("stroke").version == 1


def test_a_reader_cannot_write_and_the_next_writer_can(store: Store) -> None:
    add_study(store)
    with pytest.raises(StorageError, match="read-only"), store.reading() as reader:
        reader.studies.save("stroke", '"sneaked in"', 1)
    with store.transaction() as writer:
        assert writer.studies.save("stroke", '"new"', 1) == 2


def test_a_transaction_inside_a_transaction_is_a_fault_not_a_hang(store: Store) -> None:
    with store.transaction(), pytest.raises(RuntimeError, match="wait for itself"), store.transaction():
        pass
    with store.transaction() as transaction:
        assert transaction.sites.list() == ()
