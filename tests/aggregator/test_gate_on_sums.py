"""The gate on what is no model: statistics, rules, scores and failures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedmap.algorithm.pooling.baseline import baseline_terms
from fedmap.algorithm.pooling.statistics import FeatureStatistics, feature_statistics
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.errors import RejectedError
from fedmap.scoring.disclosure import released_statistics
from fedmap.study.plan.inputs import planned_inputs
from fedmap_aggregator.gate.updates import CheckedAnswer
from tests.aggregator import small_study as made
from tests.aggregator.at_the_gate import (
    BINARY,
    SURVIVAL,
    checked,
    evaluation,
    failure,
    fit,
    refused,
    rule,
    score,
    statistics,
)


def test_statistics_of_rows_within_the_ranges_pass() -> None:
    assert statistics(made.statistics()) == CheckedAnswer("accepted")


@given(st.integers(20, 60), st.integers(0, 9999))
def test_statistics_of_any_rows_within_the_ranges_pass(rows: int, seed: int) -> None:
    """At the very ends too: sums of float32 rows must not fall out of their range by rounding."""
    stream = torch.Generator().manual_seed(seed)
    spread = torch.randint(0, 3, (rows, 5), generator=stream) / 2  # 0, ½ or 1 of the way
    low = torch.tensor([18.0, 0.0, 0.0, 0.0, -1e30])
    high = torch.tensor([110.0, math.log1p(100.0), 1.0, 1.0, 1e30])
    assert statistics(feature_statistics(low + (high - low) * spread)).status == "accepted"


def test_rules_of_both_kinds_pass() -> None:
    assert rule(BINARY, threshold=0.3, validation_rows=12).status == "accepted"
    assert rule(BINARY).status == "accepted"  # it stays home
    assert rule(SURVIVAL, made.baseline_bytes()).status == "accepted"


@given(st.integers(0, 9999), st.integers(1, 30))
def test_the_baseline_terms_of_any_rows_pass(seed: int, floor: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    time, event = torch.rand(300, generator=stream) * 5, torch.rand(300, generator=stream) < 0.3
    grid = SURVIVAL.terms.plan.task.grid
    terms = baseline_terms(torch.randn(300, generator=stream), time, event, grid, floor)
    assert rule(SURVIVAL, made.baseline_bytes(terms), terms.joined).status == "accepted"


# --- statistics


def _with(mean: dict[int, float] | None = None, m2: dict[int, float] | None = None) -> FeatureStatistics:
    good = made.statistics()
    for index, value in (mean or {}).items():
        good.mean[index] = value
    for index, value in (m2 or {}).items():
        good.m2[index] = value
    return good


def test_statistics_as_a_site_releases_them_pass_also_where_an_input_is_not_scaled() -> None:
    """Such an input is sent as 0, which its range (18 to 110) does not hold."""
    study = made.small(made.BINARY.replace("range = [18, 110]", "range = [18, 110]\nscale = false"))
    scaled = planned_inputs(study.terms.plan).scaled
    released = released_statistics(made.rows_of(study, 60), scaled, floor=10).statistics
    assert not scaled[0]
    assert float(released.mean[0]) == 0
    assert statistics(released, study).status == "accepted"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (_with(mean={0: math.nan}), "mean holds a value that is not finite"),
        (_with(m2={0: math.inf}), "m2 holds a value that is not finite"),
        (_with(m2={1: -1e-9}), "m2 is negative"),
        (_with(mean={0: 17.0}), "the mean of age"),
        (_with(mean={0: 111.0}), "the mean of age"),
        (_with(mean={1: math.log1p(100.0) + 0.01}), "the mean of lactate"),
        (_with(mean={2: 1.01}), "the mean of ward"),
        (_with(mean={3: -0.01}), "the mean of ward"),
        (_with(mean={4: 1e300}), "the mean of free"),
        (_with(m2={0: 40 * 46.1**2}), "the spread of age"),
        (_with(m2={3: 40 * 0.26}), "the spread of ward"),
        (replace(made.statistics(), rows=19), "20 to 1,000,000,000 rows"),
        (replace(made.statistics(), rows=1_000_000_001), "20 to 1,000,000,000 rows"),
        (FeatureStatistics(40, torch.zeros(4).double(), torch.zeros(4).double()), "bytes|shape"),
    ],
)
def test_impossible_statistics_are_refused(bad: FeatureStatistics, reason: str) -> None:
    with refused(reason):
        statistics(bad)


def test_statistics_without_the_digest_of_their_inputs_are_refused() -> None:
    data = made.statistics_bytes()
    message = made.answer(BINARY, made.task("statistics"), data)
    message.statistics.rows = 40
    with refused("digest of the model's inputs"):
        checked(BINARY, "statistics", message, data)


# --- rule


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, math.inf])
def test_a_threshold_that_is_no_probability_is_refused(bad: float) -> None:
    with refused("no probability"):
        rule(BINARY, threshold=bad, validation_rows=10)


def test_a_threshold_of_a_survival_task_is_refused() -> None:
    with refused("binary task"):
        rule(SURVIVAL, made.baseline_bytes(), threshold=0.5)


def test_a_threshold_of_more_rows_than_a_site_has_is_refused() -> None:
    with refused("rows"):
        rule(BINARY, threshold=0.5, validation_rows=2_000_000_000)


@pytest.mark.parametrize("name", ["events", "position", "risk_start", "risk_end"])
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_baseline_terms_that_are_no_sums_are_refused(name: str, bad: float) -> None:
    terms = made.baseline()
    getattr(terms, name)[1] = bad
    with refused(f"{name}"):
        rule(SURVIVAL, made.baseline_bytes(terms))


def test_events_beyond_their_interval_are_refused() -> None:
    terms = made.baseline()
    terms.position[0] = terms.events[0] * 1.01
    with refused("beyond the end"):
        rule(SURVIVAL, made.baseline_bytes(terms))


def test_a_risk_set_that_grows_is_refused() -> None:
    terms = made.baseline()
    terms.risk_end[0] = terms.risk_start[0] + 1
    with refused("more at risk"):
        rule(SURVIVAL, made.baseline_bytes(terms))


def test_baseline_terms_on_another_grid_are_refused() -> None:
    with refused("bytes|shape"):
        rule(SURVIVAL, made.baseline_bytes(made.baseline(3)))


def test_more_joined_intervals_than_there_are_are_refused() -> None:
    with refused("joined"):
        rule(SURVIVAL, made.baseline_bytes(), joined=5)


# --- scores and failures


def test_scores_of_both_models_and_a_skipped_one_pass() -> None:
    skipped = pb.Score(model="global", metric="brier", note="no test rows")
    assert evaluation(score(), score(model="global"), skipped).status == "accepted"


def test_a_failure_passes_as_failed() -> None:
    assert failure(reason="the data cannot be used\n  - age: 3 values are missing").status == "failed"


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (score(metric="c_index"), "no metric of a binary task"),
        (score(metric="<script>"), "no metric"),
        (score(model="theirs"), "none of the models"),
        (score(value=math.nan), "not a finite number"),
        (score(value=math.inf), "not a finite number"),
        (score(note="x" * 501), "too long"),
        (score(note="\x1b[2J"), "control characters"),
    ],
)
def test_a_bad_score_is_refused_wherever_it_stands(score: pb.Score, reason: str) -> None:
    with refused(reason):
        evaluation(score)
    with refused(reason):
        fit(scores=[score])


def test_the_same_score_twice_is_refused() -> None:
    with refused("scored twice"):
        evaluation(score(), score(model="global"), score(value=0.9))


@pytest.mark.parametrize(
    ("code", "reason", "refusal"),
    [
        ("no-such-code", "why", "unknown code"),
        ("", "why", "unknown code"),
        ("data", "x" * 2001, "2,000 characters"),
        ("data", "\x1b]0;title\x07", "control characters"),
    ],
)
def test_a_failure_that_tells_nothing_is_refused(code: str, reason: str, refusal: str) -> None:
    with refused(refusal):
        failure(code, reason)


@given(st.text(max_size=3000), st.text(max_size=20))
def test_no_refusal_repeats_what_the_site_wrote(reason: str, code: str) -> None:
    """The message goes to logs and to the operator's screen."""
    assume(code not in ("fedmap", "plan", "data", "model", "training"))
    with pytest.raises(RejectedError) as refusal:
        failure(code, reason + "\x1b")
    assert len(refusal.value.message) < 200
    assert refusal.value.message.isprintable()
