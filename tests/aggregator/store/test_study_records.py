"""Studies, answers, results and refusals, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedmap.errors import ConflictError, NotFoundError, StorageError
from fedmap.files.digests import sha256_hex
from fedmap_aggregator.store import AnswerStatus, RefusalRow, ResultRow, Store
from tests.aggregator.store.conftest import NOW, add_study, an_answer


def test_a_study_comes_back_byte_for_byte(store: Store) -> None:
    terms = '{"title":"Schlaganfall ab 18, \\u0000 Größe ≥ 0"}'
    with store.transaction() as transaction:
        stored = transaction.studies.insert("stroke", terms, sha256_hex(terms.encode()), '{"a":1}')
    with store.reading() as transaction:
        assert transaction.studies.load("stroke") == stored
        assert transaction.studies.list() == (stored,)
    assert (stored.version, stored.terms_json) == (1, terms)


def test_a_study_name_cannot_be_taken_twice(store: Store) -> None:
    add_study(store)
    with pytest.raises(ConflictError, match="stroke"):
        add_study(store)


def test_an_unknown_study_is_said_to_be_unknown(store: Store) -> None:
    with store.transaction() as transaction:
        assert transaction.studies.get("stroke") is None
        with pytest.raises(NotFoundError, match="stroke"):
            transaction.studies.load("stroke")
        with pytest.raises(NotFoundError, match="stroke"):
            transaction.studies.save("stroke", "{}", 1)


def test_a_save_under_an_old_version_changes_nothing(store: Store) -> None:
    add_study(store)
    with store.transaction() as transaction:
        assert transaction.studies.save("stroke", '"second"', 1) == 2
    said = "version 1 was expected, 2 is stored"
    with pytest.raises(ConflictError, match=said), store.transaction() as transaction:
        transaction.studies.save("stroke", '"late"', 1)
    with store.reading() as transaction:
        study = transaction.studies.load("stroke")
    assert (study.state_json, study.version) == ('"second"', 2)


def test_nothing_of_a_failed_transaction_stays(store: Store) -> None:
    add_study(store)

    def fail_half_way() -> None:
        with store.transaction() as transaction:
            transaction.studies.save("stroke", '"half"', 1)
            transaction.answers.put(an_answer())
            transaction.audit.append("operator:kim", "start", "stroke", {}, NOW)
            raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError, match="the power fails"):
        fail_half_way()
    with store.reading() as transaction:
        assert transaction.studies.load("stroke").version == 1
        assert transaction.answers.list("stroke", "round-1") == ()
        assert transaction.audit.verify().entries == 0


def test_a_repeated_answer_gets_the_first_receipt(store: Store) -> None:
    add_study(store)
    first = an_answer()
    with store.transaction() as transaction:
        assert transaction.answers.put(first) == first
    with store.transaction() as transaction:
        assert transaction.answers.put(replace(first, received_at=NOW + 5)) == first
        assert transaction.answers.list("stroke", "round-1") == (first,)


@pytest.mark.parametrize("status", ["accepted", "abstained"])
@pytest.mark.parametrize("second", ["accepted", "failed"])
def test_an_answer_after_an_accepted_one_is_a_conflict(
    store: Store, status: AnswerStatus, second: AnswerStatus
) -> None:
    add_study(store)
    with store.transaction() as transaction:
        transaction.answers.put(an_answer(status=status))
    with pytest.raises(ConflictError, match="accepted before"), store.transaction() as transaction:
        transaction.answers.put(an_answer(status=second, content=b"other"))


def test_a_failed_answer_may_be_followed_by_an_accepted_one_which_then_stands(store: Store) -> None:
    add_study(store)
    failed = an_answer(status="failed", content=b"1")
    rejected = an_answer(status="rejected", content=b"2")
    accepted = an_answer(content=b"3", attempt=2)
    with store.transaction() as transaction:
        transaction.answers.put(failed)
        transaction.answers.put(rejected)
        assert transaction.answers.get("stroke", "round-1", "leeds") == rejected
        transaction.answers.put(accepted)
    with store.reading() as transaction:
        answers = transaction.answers
        assert answers.get("stroke", "round-1", "leeds") == accepted
        assert answers.get("stroke", "round-1", "leeds", attempt=1) == rejected
        assert answers.get("stroke", "round-1", "leeds", attempt=3) is None
        assert answers.find("stroke", "round-1", "leeds", failed.digest) == failed
        assert answers.list("stroke", "round-1") == (accepted,)


def test_answers_are_listed_by_site_and_not_mixed_between_tasks(store: Store) -> None:
    add_study(store)
    rows = [an_answer(site) for site in ("york", "bath", "leeds")]
    with store.transaction() as transaction:
        for row in rows:
            transaction.answers.put(row)
        transaction.answers.put(an_answer("bath", content=b"later", task="round-2"))
    with store.reading() as transaction:
        assert [row.site for row in transaction.answers.list("stroke", "round-1")] == [
            "bath",
            "leeds",
            "york",
        ]
        assert [row.task for row in transaction.answers.list("stroke", "round-2")] == ["round-2"]


def test_the_bits_of_an_answer_and_its_norm_survive(store: Store) -> None:
    add_study(store)
    row = replace(an_answer(content=bytes(range(256))), norm=0.1 + 0.2)
    with store.transaction() as transaction:
        transaction.answers.put(row)
    with store.reading() as transaction:
        assert transaction.answers.get("stroke", "round-1", "leeds") == row


def test_an_accepted_answer_whose_tensors_are_not_on_disk_is_not_stored(store: Store) -> None:
    add_study(store)
    row = an_answer(tensors_digest=sha256_hex(b"tensors"))
    with pytest.raises(StorageError, match="not on the disk"), store.transaction() as transaction:
        transaction.answers.put(row)
    store.blobs.put(b"tensors")
    with store.transaction() as transaction:
        transaction.answers.put(row)


def test_an_answer_to_an_unknown_study_is_refused(store: Store) -> None:
    with pytest.raises(StorageError, match="breaks a rule"), store.transaction() as transaction:
        transaction.answers.put(an_answer())


def test_a_step_has_one_result(store: Store) -> None:
    add_study(store)
    prior = store.blobs.put(b"prior")
    first = ResultRow("stroke", "round-1", prior, '{"loss":0.5}', NOW)
    with store.transaction() as transaction:
        transaction.results.put(first)
        transaction.results.put(replace(first, closed_at=NOW + 1))
        assert transaction.results.get("stroke", "round-1") == first
    with pytest.raises(ConflictError, match="round-1"), store.transaction() as transaction:
        transaction.results.put(replace(first, content_json="{}"))


def test_results_come_in_the_order_of_the_steps(store: Store) -> None:
    add_study(store)
    tasks = ["statistics", "initialise", *(f"round-{n}" for n in range(1, 12)), "rule", "evaluate"]
    with store.transaction() as transaction:
        for task in tasks:
            transaction.results.put(ResultRow("stroke", task, "", "{}", NOW))
        assert [row.task for row in transaction.results.list("stroke")] == tasks


def test_a_result_whose_prior_is_not_on_disk_is_not_stored(store: Store) -> None:
    add_study(store)
    with pytest.raises(StorageError, match="not on the disk"), store.transaction() as transaction:
        transaction.results.put(ResultRow("stroke", "round-1", sha256_hex(b"prior"), "{}", NOW))


def test_the_newest_refusals_come_first(store: Store) -> None:
    add_study(store)
    add_study(store, "sepsis")
    with store.transaction() as transaction:
        for number in range(5):
            transaction.refusals.add(
                RefusalRow("stroke", "round-1", "leeds", "rejected", f"{number}\x00", NOW)
            )
        transaction.refusals.add(RefusalRow("sepsis", "round-1", "leeds", "training", "other", NOW))
        newest = transaction.refusals.newest("stroke", 2)
    assert [row.reason for row in newest] == ["4\N{REPLACEMENT CHARACTER}", "3\N{REPLACEMENT CHARACTER}"]


def test_of_each_site_the_newest_accepted_answer_that_has_tensors_is_found(store: Store) -> None:
    add_study(store)
    blobs = {content: store.blobs.put(content) for content in (b"1", b"2", b"3")}
    put = [
        ("bath", "round-1", "accepted", b"1"),
        ("bath", "round-2", "accepted", b"2"),
        ("leeds", "round-1", "accepted", b"3"),
        ("leeds", "round-2", "rejected", b""),
        ("york", "round-1", "abstained", b""),
        ("ely", "round-2", "accepted", b"2"),
    ]
    with store.transaction() as transaction:
        for site, task, status, content in put:
            digest = blobs.get(content, "")
            transaction.answers.put(
                an_answer(site, status, f"{site} {task}".encode(), task=task, tensors_digest=digest)  # type: ignore[arg-type]
            )
        newest_first, sites = ("round-2", "round-1"), ("bath", "leeds", "york")
        found = transaction.answers.newest_accepted("stroke", newest_first, sites)
        assert [(row.site, row.task) for row in found] == [("bath", "round-2"), ("leeds", "round-1")]
        transaction.answers.forget_tensors("stroke", newest_first, spared=found[:1])
        left = transaction.answers.newest_accepted("stroke", newest_first, (*sites, "ely"))
        assert [(row.site, row.task) for row in left] == [("bath", "round-2")]
        transaction.answers.forget_tensors("stroke", newest_first)
        assert transaction.answers.newest_accepted("stroke", newest_first, sites) == ()
