"""What the estimation process is asked for: whose updates count in a round, and which of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedmap.contract.v1 import values
from fedmap.contract.v1.values import FitAnswer
from fedmap.errors import RejectedError
from fedmap.study.answers import content_as
from fedmap_aggregator.estimation.process import Request
from fedmap_aggregator.release.figures import release_figures
from fedmap_aggregator.studies.records import StepResult, step_of, study_record
from tests.aggregator.centre import Centre, Site
from tests.aggregator.small_study import Small

ONE_IS_ENOUGH = "\n[rounds]\nquorum = 1\n"
CONSENSUS = ONE_IS_ENOUGH + "[training]\nconsensus_share = 0.75\n"  # rounds 1, 2 and 3 of four


@pytest.fixture
def sites(centre: Centre) -> dict[str, Site]:
    return {name: centre.enrolled(name) for name in ("east", "north", "south")}


def in_first_round(centre: Centre, sites: dict[str, Site], extra: str = CONSENSUS) -> Small:
    """A study of four rounds whose first is open."""
    study = centre.started(*sites.values(), rounds=4, extra=extra)
    while centre.task(study).id != "round-1":
        for site in sites.values():
            if centre.task(study).id != "round-1" and site.next_task() is not None:
                site.work(study)
    return study


def fit(study: Small, site: Site, log_omega: float) -> str:
    """Answer the open round with this weight; the digest of the update."""
    answer, tensors = site.ready(study)
    assert answer.fit is not None
    site.submit(replace(answer, fit=replace(answer.fit, log_omega=log_omega)), tensors)
    return answer.tensors_digest


def close(centre: Centre, study: Small, number: int) -> Request:
    """Let the deadline pass; what was asked for the round."""
    task = centre.task(study)
    if task.id == f"round-{number}":
        centre.clock.now = task.deadline_at
        centre.service.pass_time(centre.clock.now)
    asked = [request for request in centre.estimator.asked if request.kind == "fit"]
    assert [request.round for request in asked] == list(range(1, number + 1))
    return asked[-1]


def counted(request: Request) -> dict[str, tuple[float, str]]:
    return {
        one.site: (content_as(FitAnswer, one).log_omega or 0.0, one.tensors_digest) for one in request.answers
    }


def stored(centre: Centre, study: Small, number: int) -> StepResult:
    with centre.store.reading() as transaction:
        results = transaction.results.list(study.terms.study)
    return step_of(next(row for row in results if row.task == f"round-{number}"))


def test_in_consensus_rounds_a_site_that_is_missing_counts_with_what_it_sent_last(
    centre: Centre, sites: dict[str, Site]
) -> None:
    study = in_first_round(centre, sites)
    east, north, south = sites["east"], sites["north"], sites["south"]
    fit(study, east, -0.1), fit(study, north, -0.2)
    from_south = fit(study, south, -0.3)
    assert {weight for weight, _ in counted(close(centre, study, 1)).values()} == {-0.1, -0.2, -0.3}
    assert stored(centre, study, 1).absent == ()

    fit(study, east, -0.4)
    from_north = fit(study, north, -0.5)
    with pytest.raises(RejectedError):
        fit(study, south, float("nan"))
    second = counted(close(centre, study, 2))
    assert second["north"] == (-0.5, from_north)
    assert second["south"] == (-0.3, from_south)
    step = stored(centre, study, 2)
    assert step.absent == ("south",)
    assert sum(step.weights.values()) == pytest.approx(1)
    assert step.summary is not None
    assert (step.summary.answered, step.summary.members) == (2, 3)

    fit(study, east, -0.6)
    third = counted(close(centre, study, 3))
    assert third["north"] == (-0.5, from_north), "its newest update"
    assert third["south"] == (-0.3, from_south), "one that was refused never counts"
    (entry,) = (one for one in centre.status(study).history if one.round == 3)
    assert (entry.answered, list(entry.absent), entry.members) == (1, ["north", "south"], 3)
    with centre.store.reading() as transaction:
        told = [one.detail for one in transaction.audit.entries() if one.action == "step.computed"]
    assert [one.get("by_earlier_update", "") for one in told][-3:] == ["", "south", "north, south"]

    fit(study, east, -0.7)
    assert counted(close(centre, study, 4)).keys() == {"east"}, "a round under the prior takes what came"


def test_without_consensus_rounds_nobody_counts_who_does_not_answer(
    centre: Centre, sites: dict[str, Site]
) -> None:
    study = in_first_round(centre, sites, extra=ONE_IS_ENOUGH)
    for site in sites.values():
        fit(study, site, -0.1)
    fit(study, sites["east"], -0.2)
    assert counted(close(centre, study, 2)).keys() == {"east"}
    assert stored(centre, study, 2).absent == ()


def test_a_site_that_left_counts_no_more(centre: Centre, sites: dict[str, Site]) -> None:
    study = in_first_round(centre, sites)
    for site in sites.values():
        fit(study, site, -0.1)
    south = sites["south"]
    centre.federation.leave(south.caller, values.LeaveRequest(study=study.terms.study))
    fit(study, sites["east"], -0.2)
    assert counted(close(centre, study, 2)).keys() == {"east", "north"}


def test_a_site_that_never_answered_does_not_count(centre: Centre, sites: dict[str, Site]) -> None:
    study = in_first_round(centre, sites)
    fit(study, sites["east"], -0.1)
    assert counted(close(centre, study, 1)).keys() == {"east"}


def test_retention_spares_what_a_consensus_round_may_count_again(
    centre: Centre, sites: dict[str, Site]
) -> None:
    study = in_first_round(centre, sites)
    digests = {name: fit(study, site, -0.1) for name, site in sites.items()}
    fit(study, sites["east"], -0.2)
    from_north = fit(study, sites["north"], -0.2)
    close(centre, study, 2)
    assert centre.purge.prune(study.terms.study, keep_rounds=1)
    assert not centre.store.blobs.has(digests["east"])
    fit(study, sites["east"], -0.3)
    third = counted(close(centre, study, 3))
    assert third["south"] == (-0.1, digests["south"])
    assert third["north"] == (-0.2, from_north)
    fit(study, sites["east"], -0.4)
    close(centre, study, 4)
    assert centre.purge.prune(study.terms.study, keep_rounds=1)
    assert not centre.store.blobs.has(digests["south"]), "no later round can count it"


def test_retention_spares_nothing_of_a_study_that_ended_in_its_consensus_rounds(
    centre: Centre, sites: dict[str, Site]
) -> None:
    study = in_first_round(centre, sites)
    digests = {name: fit(study, site, -0.1) for name, site in sites.items()}
    fit(study, sites["east"], -0.2)
    close(centre, study, 2)
    centre.control(study, "abort")
    assert centre.purge.prune(study.terms.study, keep_rounds=1)
    assert not any(centre.store.blobs.has(digest) for digest in digests.values())


def test_a_release_tells_the_updates_that_were_sent_and_not_how_often_they_counted(
    centre: Centre, sites: dict[str, Site]
) -> None:
    study = in_first_round(centre, sites)
    for site in sites.values():
        fit(study, site, -0.1)
    for number in (2, 3, 4):
        fit(study, sites["east"], -0.2)
        close(centre, study, number)
    with centre.store.reading() as transaction:
        record = study_record(transaction, study.terms, centre.service.study(study.terms.study).state)
    found = release_figures(record, 4)
    assert (found.sites, found.accepted_updates) == (3, 3 + 1 + 1 + 1)
