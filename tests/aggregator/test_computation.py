"""What the estimation process is asked for, given a study's state and what its sites sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

from aggregator.computation import absent, request_for
from aggregator.coordinator_events import Compute
from aggregator.coordinator_state import StudyState, new_study
from aggregator.estimation_messages import NextPrior
from aggregator.store import AnswerRow
from common.algorithm.aggregation import next_prior
from common.algorithm.prior import Prior
from common.contract.v1 import federation_pb2 as pb
from common.parameter_files import decode_parameters, decode_prior
from tests.aggregator import small_study as made
from tests.aggregator.centre import Centre, centre_in, scripted
from tests.aggregator.small_study import Small


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    with centre_in(tmp_path) as made_here:
        yield made_here


CONSENSUS = made.small(made.BINARY + "\n[training]\nconsensus_share = 0.67\n")  # rounds 1 and 2 of three


def computing(study: Small, number: int) -> tuple[StudyState, Compute]:
    """Of two sites that were asked only one answered."""
    task, name = made.task("fit", number), study.terms.study
    state = new_study(name, quorum=1, rounds=3, seed=5, deadline_seconds=60, sites=task.asked)
    return replace(state, task=task, computing=True), Compute(task.id, "fit", number, ("north",))


def accepted(study: Small, site: str, number: int, log_omega: float) -> AnswerRow:
    answer = made.answer(study, made.task("fit", number))
    answer.fit.CopyFrom(pb.FitAnswer(loss=0.5, epochs=1, log_omega=log_omega))
    told = answer.SerializeToString()
    return AnswerRow(answer.study, answer.task_id, site, 1, "d" * 64, "accepted", told, "t" * 64, 1.0, "", 9)


@pytest.mark.parametrize(
    ("study", "number", "expected"),
    [(CONSENSUS, 2, {"south"}), (CONSENSUS, 3, set()), (made.small(), 2, set())],
    ids=["consensus", "under the prior", "no consensus rounds"],
)
def test_only_a_consensus_round_asks_for_those_who_are_absent(
    study: Small, number: int, expected: set[str]
) -> None:
    assert absent(study.terms, *computing(study, number)) == expected


def test_a_site_that_did_not_answer_counts_with_the_weight_it_sent_last() -> None:
    state, compute = computing(CONSENSUS, 2)
    here, before = accepted(CONSENSUS, "north", 2, -0.25), accepted(CONSENSUS, "south", 1, 1.5)
    request = request_for(CONSENSUS.terms, state, compute, [here], (), [before])
    assert isinstance(request, NextPrior)
    assert [(update.site, update.log_omega) for update in request.updates] == [("north", -0.25)]
    assert (request.round, request.absent) == (2, (1.5,))


def test_a_consensus_round_that_a_site_missed_is_computed_with_its_last_weight(centre: Centre) -> None:
    """From the database and the files, as the server does it; all weights are equal here."""
    sites = [centre.enrolled(name) for name in ("east", "north", "south")]
    study = centre.started(*sites, rounds=3, extra="\n[training]\nconsensus_share = 0.67\n")
    for site in islice(cycle(sites), 100):
        if centre.task(study).id != "round-2" and site.next_task() is not None:
            site.work(study)
    assert centre.task(study).id == "round-2"
    before, task = prior_of(centre, study), centre.task(study)
    for site in sites[1:]:
        site.work(study)
    centre.clock.now = task.deadline_at
    centre.service.pass_time(centre.clock.now)
    assert centre.service.study(study.terms.study).state.rounds_done == 2
    plan, network = study.terms.plan, study.model.network
    updates = {}
    for site in sites[1:]:
        asked = pb.Task(study=study.terms.study, id=task.id, kind=pb.TASK_KIND_FIT)
        updates[site.name] = decode_parameters(network, scripted(study, asked, site.name)[1])
    log_omega = dict.fromkeys(updates, -0.5)
    settings = (network.spec, plan.prior, plan.aggregation)
    expected = next_prior(*settings, before, log_omega, updates.__getitem__, [-0.5]).prior
    found = prior_of(centre, study)
    assert found.multiplier is not None
    assert expected.multiplier is not None
    assert torch.equal(found.multiplier, expected.multiplier)
    assert torch.equal(found.mu, expected.mu)
    everybody = next_prior(*settings, before, log_omega, updates.__getitem__, []).prior
    assert not torch.equal(found.mu, everybody.mu), "the test could not tell that a site was missing"


def prior_of(centre: Centre, study: Small) -> Prior:
    digest = centre.service.study(study.terms.study).state.prior_digest
    return decode_prior(
        study.model.network, study.terms.plan.prior, centre.store.blobs.existing(digest)
    ).prior
