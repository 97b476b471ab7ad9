"""One enrolled site that means harm: what it sends must not stop the study of the others."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.pooling.baseline import BaselineTerms, pool_baseline
from fedmap.algorithm.pooling.statistics import FeatureStatistics, make_scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.contract.v1 import values
from fedmap.errors import LimitError, RejectedError, TrainingError
from fedmap.study.answer_names import WITHHELD
from fedmap.study.tensors.parameter_files import decode_prior, encode_parameters
from fedmap_aggregator.gate.statistics import check_baseline
from tests.aggregator import small_study as made
from tests.aggregator.at_the_gate import failure
from tests.aggregator.centre import OPERATOR, Centre, failed, run_until


@pytest.mark.parametrize(
    ("mean", "variance", "count"),
    [(3.4e38, 1.0, 7), (0.0, 3.4e38, 7), (0.0, 1.0, 2**63 - 1)],
    ids=["mean", "variance", "count"],
)
def test_batch_norm_statistics_that_would_break_the_prior_are_refused(
    centre: Centre, mean: float, variance: float, count: int
) -> None:
    """Each is a finite number, but the pooled variance would not be, and nobody could read the prior."""
    sites = [centre.enrolled(name) for name in ("north", "south", "west")]
    study = centre.started(*sites)
    run_until(study, "rounds", *sites)
    sound = made.parameters(study)
    bad = Buffers(
        torch.full_like(sound.buffers.mean, mean),
        torch.full_like(sound.buffers.variance, variance),
        torch.full_like(sound.buffers.count, count),
    )
    tensors = encode_parameters(study.model.network, SiteParameters(sound.theta, bad))
    answer, _ = sites[0].ready(study)
    digest = hashlib.sha256(tensors).hexdigest()
    answer = replace(answer, tensors_size=len(tensors), tensors_digest=digest)
    with pytest.raises(RejectedError, match="absurdly large"):
        sites[0].submit(answer, tensors)
    for site in sites[1:]:
        site.work(study)
    state = centre.service.study(study.terms.study).state
    assert state.rounds_done == 1
    decode_prior(study.model.network, study.terms.plan.prior, centre.store.blobs.existing(state.prior_digest))


def test_failures_without_end_are_cut_off(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    centre.started(north, south)
    task = north.asked()

    def failure(number: int) -> values.Answer:
        return failed(task, "north", "training", f"number {number}")

    for number in range(20):
        north.submit(failure(number))
    with pytest.raises(LimitError, match="failures"):
        north.submit(failure(20))
    north.submit(failure(3))  # a repeated one has its receipt


def test_a_study_whose_computation_fails_goes_on_without_the_site_that_is_revoked(centre: Centre) -> None:
    sites = [centre.enrolled(name) for name in ("north", "south", "west")]
    study = centre.started(*sites)
    run_until(study, "rounds", *sites)
    centre.estimator.failures = [TrainingError("ψ left the finite numbers", hint="look")] * 3
    for site in sites:
        site.work(study)
    for _ in range(3):
        centre.clock.now += 61_000
        for site in sites:
            centre.service.heard(site.name, None)
        centre.service.compute_due()
    assert centre.service.study(study.terms.study).state.problem
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="west", reason="poison"))
    centre.control(study, "resume")
    state = centre.service.study(study.terms.study).state
    assert (state.rounds_done, state.problem) == (1, "")
    last = [request for request in centre.estimator.asked if request.kind == "fit"][-1]
    assert [update.site for update in last.answers] == ["north", "south"]
    run_until(study, "complete", *sites[:2])


def _terms(events: float, position: float, start: float, end: float) -> BaselineTerms:
    one, two, three, four = (
        torch.full((4,), value, dtype=torch.float64) for value in (events, position, start, end)
    )
    return BaselineTerms(one, two, three, four, joined=0)


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (_terms(1e308, 0.0, 1.0, 1.0), "absurdly large"),
        (_terms(10.0, 5.0, 1e308, 1.0), "absurdly large"),
        (_terms(10.0, 5.0, 0.0, 0.0), "nobody is at risk"),
    ],
)
def test_baseline_terms_that_no_rows_give_are_refused(terms: BaselineTerms, reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        check_baseline(terms)


def test_a_baseline_hazard_that_is_not_finite_is_none() -> None:
    with pytest.raises(TrainingError, match="not finite"):
        pool_baseline({"north": _terms(10.0, 10.0, 1e-199, 0.0)}, (1.0, 2.0, 3.0, 4.0))


def test_a_spread_too_small_for_float32_counts_as_none() -> None:
    """The prior's scaler would otherwise divide by zero, and no site could read it."""
    sums = FeatureStatistics(40, torch.zeros(2).double(), torch.tensor([1e-300, 40.0]).double())
    scaler = make_scaler(sums, (True, True))
    assert scaler.deviation[0] == 1.0
    assert scaler.deviation[1] > 1.0


def test_what_a_reviewer_withholds_is_a_failure_and_no_refusal() -> None:
    assert failure(WITHHELD, "withheld by the site's reviewer").status == "failed"
