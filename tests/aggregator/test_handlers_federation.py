"""What T1 sites ask, without a network: only what they are invited to, and only what can still be done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.contract.v1.values import Receipt
from fedmap.errors import (
    ConflictError,
    IncompatibleError,
    IntegrityError,
    LimitError,
    NotFoundError,
    RejectedError,
    StateError,
)
from fedmap.transport.chunks import UploadPart
from fedmap_aggregator.gate.intake import Upload
from tests.aggregator.centre import Centre, Site, parts_of, run_until


def begun(centre: Centre, answer: values.Answer) -> Upload | Receipt:
    """What the intake makes of an answer of north."""
    return centre.intake.begin("north", answer, wire.write(answer))


def test_versions_that_do_not_overlap_are_refused(centre: Centre, pair: tuple[Site, Site]) -> None:
    with pytest.raises(IncompatibleError, match="protocol 7 to 9"):
        centre.federation.hello(pair[0].caller, values.HelloRequest(7, 9))
    response = centre.federation.hello(pair[0].caller, values.HelloRequest(0, 9))
    assert (response.protocol, response.tier, response.time_unix_ms) == (1, 1, centre.clock())


def test_a_site_sees_the_terms_it_would_approve_and_its_membership(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.create("north", "south")
    (offered,) = centre.federation.list_studies(pair[0].caller).studies
    assert offered.terms_json == study.terms.to_json()
    assert (offered.phase, offered.membership) == ("approvals", "invited")
    pair[0].approve(study)
    pair[0].approve(study)
    (offered,) = centre.federation.list_studies(pair[0].caller).studies
    assert offered.membership == "approved"


def test_a_site_leaves_and_leaving_again_changes_nothing(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    request = values.LeaveRequest(study=study.terms.study)
    centre.federation.leave(pair[0].caller, request)
    entries = centre.operator.verify_audit().entries
    centre.federation.leave(pair[0].caller, request)
    assert centre.operator.verify_audit().entries == entries
    assert pair[0].next_task() is None
    with pytest.raises(StateError):
        list(
            centre.federation.fetch_prior(
                pair[0].caller, values.FetchPriorRequest(study=study.terms.study, digest="0" * 64)
            )
        )


def test_a_prior_of_another_study_is_not_found(centre: Centre, pair: tuple[Site, Site]) -> None:
    first = centre.started(*pair, name="first")
    run_until(first, "rounds", *pair)
    digest = centre.service.study("first").state.prior_digest
    centre.started(*pair, name="second")
    with pytest.raises(NotFoundError):
        centre.federation.fetch_prior(pair[0].caller, values.FetchPriorRequest(study="second", digest=digest))
    with pytest.raises(NotFoundError):
        centre.federation.fetch_prior(pair[0].caller, values.FetchPriorRequest(study="second", digest=""))


def test_a_prior_of_an_earlier_round_can_still_be_fetched(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair, rounds=2)
    run_until(study, "rounds", *pair)
    first = centre.service.study(study.terms.study).state.prior_digest
    for site in pair:
        site.work(study)
    request = values.FetchPriorRequest(study=study.terms.study, digest=first)
    assert b"".join(centre.federation.fetch_prior(pair[0].caller, request))


def test_an_empty_upload_and_one_with_two_answers_are_rejected(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    with pytest.raises(RejectedError):
        centre.federation.submit(pair[0].caller, iter(()))
    answer, _ = pair[0].ready(study)
    twice = [UploadPart(answer=answer)] * 2
    with pytest.raises(RejectedError, match="one answer"):
        centre.federation.submit(pair[0].caller, iter(twice))


def test_an_upload_that_breaks_off_leaves_nothing_behind(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    answer, tensors = pair[0].ready(study)

    def broken() -> Iterator[UploadPart]:
        parts = parts_of(answer, tensors, piece=100)
        yield next(parts)
        yield next(parts)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        centre.federation.submit(pair[0].caller, broken())
    assert not list((centre.folder / "blobs" / "incoming").iterdir())
    pair[0].submit(answer, tensors)


def test_two_copies_at_the_same_time_are_one_answer(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    answer, tensors = pair[0].ready(study)
    first, second = (begun(centre, answer) for _ in range(2))
    assert isinstance(first, Upload)
    assert isinstance(second, Upload)
    with first, second:
        first.write(tensors)
        second.write(tensors)
        receipt = first.finish()
        centre.clock.now += 1000
        pair[1].work(study)  # closes the task between the two
        assert second.finish() == receipt


def test_two_different_answers_at_the_same_time_are_a_conflict(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    answer, tensors = pair[0].ready(study)
    other = replace(answer, statistics=values.StatisticsAnswer(41))
    first, second = begun(centre, answer), begun(centre, other)
    assert isinstance(first, Upload)
    assert isinstance(second, Upload)
    with first, second:
        first.write(tensors)
        second.write(tensors)
        first.finish()
        with pytest.raises(ConflictError):
            second.finish()


def test_a_site_that_is_refused_again_and_again_is_stopped(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    answer, _ = pair[0].ready(study)
    for size in range(20):
        with pytest.raises(RejectedError):
            pair[0].submit(replace(answer, tensors_size=(1 << 40) + size))
    with pytest.raises(LimitError, match="were refused"):
        pair[0].submit(replace(answer, tensors_size=(1 << 40) + 20))


def test_an_answer_without_its_tensors_is_not_whole(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    answer, _ = pair[0].ready(study)
    with pytest.raises(IntegrityError, match="0 bytes arrived"):
        pair[0].submit(answer)


def test_a_heartbeat_for_a_study_of_others_is_not_found(centre: Centre, pair: tuple[Site, Site]) -> None:
    request = values.HeartbeatRequest(instance=values.AgentInstance(id="a", start=1), study="other")
    with pytest.raises(NotFoundError):
        centre.federation.heartbeat(pair[0].caller, request)
