"""What becomes of small cells: in statistics, and in calibration and groups of a site's test rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.algorithm.pooling.statistics import feature_statistics
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.metrics import Metric, SkippedMetric, Threshold
from fedmap.metrics.names import metric_names
from fedmap.scoring.calibration_bins import bin_of
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.disclosure import is_small_cell, released_statistics
from fedmap.scoring.evaluation import Scoring
from fedmap.scoring.evaluation_terms import (
    Subgroup,
    calibration_terms,
    measure_with_errors,
    subgroup_scores,
)
from fedmap.study.models import model_of
from fedmap.study.plan.reading import parse_plan
from tests import plans

BINARY = plans.binary("sick")
MANY = {"kind": "multiclass", "label": "sick", "classes": [0, 1, 2], "metric": "accuracy"}
COX = plans.cox("t", "e", 5.0, grid=[2.5, 5.0])
NAMES = ("a", "ward=two", "ward=three")
FLOOR = 5


def scoring(
    task: plans.Table = BINARY, rows: int = 200, wards: tuple[float, ...] = (0.5, 0.3, 0.2)
) -> Scoring:
    """A model that says σ(a), or a log hazard of a, on rows for which it is true."""
    plan = parse_plan(
        plans.plan_text("toy", task, plans.number("a"), plans.category("ward", "one", "two", "three")),
        "toy.toml",
    )
    rng = np.random.default_rng(rows)
    a = rng.normal(-0.5, 1.0, rows)
    ward = rng.choice(3, rows, p=wards)
    features = torch.tensor(np.stack([a, ward == 1, ward == 2], axis=1), dtype=torch.float32)
    model = model_of(plan)
    theta = torch.zeros(model.network.spec.size)
    event = None
    if plan.task.kind == "cox":
        happens, leaves = rng.exponential(10 * np.exp(-a)), np.minimum(rng.exponential(20, rows), 5.0)
        event, target = torch.from_numpy(happens <= leaves), torch.from_numpy(np.minimum(happens, leaves))
        rule = DecisionRule(baseline=Baseline((2.5, 5.0), torch.tensor([0.25, 0.5], dtype=torch.float64)))
        theta[0] = 1.0
    elif plan.task.kind == "multiclass":
        target, rule = torch.from_numpy(rng.integers(0, 3, rows)), DecisionRule()
    else:
        target = torch.from_numpy((rng.random(rows) < 1 / (1 + np.exp(-a))).astype(np.int64))
        rule = DecisionRule(Threshold(0.5))
        theta[0] = 1.0
    test = Examples(features, target, event)
    parameters = SiteParameters(theta, model.network.initial_buffers())
    return Scoring(plan, model, parameters, rule, test, test, 3)


@pytest.mark.parametrize("task", [BINARY, MANY, COX], ids=["binary", "multiclass", "cox"])
def test_every_metric_comes_with_its_error(task: plans.Table) -> None:
    measured = measure_with_errors(scoring(task))
    assert [one.result.name for one in measured] == list(metric_names(scoring(task).plan.task.kind))
    for one in measured:
        assert isinstance(one.result, Metric)
        assert one.standard_error is not None
        assert 0 < one.standard_error < 1


def test_no_test_rows_are_no_error_and_no_terms() -> None:
    nothing = scoring().on(np.zeros(200, dtype=np.bool_))
    assert all(isinstance(one.result, SkippedMetric) for one in measure_with_errors(nothing))
    assert calibration_terms(nothing, FLOOR) == ()


def test_every_row_is_in_one_bin_and_events_are_counted_exactly() -> None:
    one = scoring(rows=600)
    terms = calibration_terms(one, FLOOR)
    assert len(terms) > 5
    assert sum(term.rows for term in terms) == 600
    assert sum(term.observed for term in terms) == pytest.approx(float((one.test.target == 1).sum()))
    assert all(term.effective_rows == term.rows for term in terms)
    for term in terms:
        assert bin_of(term.predicted / term.rows) == term.bin
        assert abs(term.observed - term.predicted) < 4 * np.sqrt(term.rows) * 0.5  # the model is true


@settings(max_examples=40)
@given(st.integers(1, 120), st.integers(2, 20))
def test_no_bin_of_any_site_holds_a_small_cell(rows: int, floor: int) -> None:
    one = scoring(rows=rows)
    for term in calibration_terms(one, floor):
        assert term.rows >= floor
        assert not 0 < round(term.observed) < floor
        assert not 0 < term.rows - round(term.observed) < floor


def test_a_model_without_a_hazard_or_with_many_classes_has_no_calibration() -> None:
    cox = scoring(COX)
    assert calibration_terms(replace(cox, rule=DecisionRule()), FLOOR) == ()
    assert calibration_terms(scoring(MANY), FLOOR) == ()


def test_the_observed_risk_of_a_survival_bin_allows_for_censoring() -> None:
    one = scoring(COX, rows=2000)
    assert one.test.event is not None
    terms = calibration_terms(one, FLOOR)
    assert sum(term.rows for term in terms) == 2000
    observed, predicted = sum(t.observed for t in terms), sum(t.predicted for t in terms)
    assert observed > float(one.test.event.sum()) + 20  # some of the censored would have had one
    assert observed == pytest.approx(predicted, rel=0.1)
    assert all(0 < term.effective_rows <= term.rows for term in terms)


def test_survival_bins_in_which_few_reach_the_horizon_are_joined() -> None:
    one = scoring(COX, rows=150)
    assert one.test.event is not None
    for term in calibration_terms(one, 20):
        assert term.rows >= 40  # twenty with an event, twenty at the horizon
    short = replace(one, test=Examples(one.test.features, one.test.target.clamp(max=4.9), one.test.event))
    assert calibration_terms(short, FLOOR) == ()


def groups(one: Scoring, floor: int = FLOOR) -> dict[str, Subgroup]:
    return {group.category: group for group in subgroup_scores(one, NAMES, floor)}


def test_groups_are_scored_by_their_own_rows() -> None:
    one = scoring(rows=300)
    found = groups(one)
    assert list(found) == ["one", "two", "three"]
    assert sum(group.rows or 0 for group in found.values()) == 300
    second = one.on(one.test.features[:, 1].numpy() == 1)
    (expected,) = measure_with_errors(second, ["auroc"])
    assert found["two"].measured == expected
    assert found["two"].rows == len(second.test)


def test_a_group_with_few_rows_is_left_out_with_one_more_so_that_nobody_can_subtract() -> None:
    one = scoring(rows=300, wards=(0.6, 0.39, 0.01))
    small = int((one.test.features[:, 2] == 1).sum())
    assert 0 < small < FLOOR
    found = groups(one)
    assert found["three"].rows is None
    assert found["two"].rows is None  # the smaller of the other two
    assert found["one"].rows is not None
    told = sum(group.rows or 0 for group in found.values())
    assert 300 - told >= FLOOR
    for category in ("two", "three"):
        assert isinstance(found[category].measured.result, SkippedMetric)


def test_a_group_with_few_events_is_left_out_alone_where_its_rows_are_many() -> None:
    one = scoring(rows=300)
    rows = one.test.features[:, 2] == 1
    target = one.test.target.clone()
    target[rows] = 0
    target[rows.nonzero()[:2, 0]] = 1
    found = groups(replace(one, test=Examples(one.test.features, target)))
    assert found["three"].rows is None
    assert found["one"].rows
    assert found["two"].rows


def test_an_empty_group_says_so() -> None:
    found = groups(scoring(rows=100, wards=(0.5, 0.5, 0.0)))
    assert found["three"].rows == 0
    assert found["three"].measured.result == SkippedMetric("auroc", "no test rows")


@settings(max_examples=25)
@given(st.integers(20, 80), st.integers(2, 20), st.floats(0.01, 0.3), st.floats(0.01, 0.3))
def test_what_the_groups_leave_over_is_never_a_small_cell(
    rows: int, floor: int, second: float, third: float
) -> None:
    one = scoring(rows=rows, wards=(1 - second - third, second, third))
    found = subgroup_scores(one, NAMES, floor)
    told = sum(group.rows or 0 for group in found)
    assert not 0 < rows - told < floor
    assert not any(0 < (group.rows or 0) < floor for group in found)


def test_zero_and_the_floor_itself_are_no_small_cells() -> None:
    assert [is_small_cell(count, 5) for count in (0, 1, 4, 5, 6)] == [False, True, True, False, False]


def test_common_inputs_leave_exactly_as_they_are() -> None:
    rows = torch.randn(50, 2)
    released = released_statistics(rows, (True, True), 10)
    exact = feature_statistics(rows)
    assert torch.equal(released.statistics.mean, exact.mean)
    assert torch.equal(released.statistics.m2, exact.m2)
    assert (released.unscaled, released.rare) == (0, 0)


def test_nobody_learns_of_the_few_who_differ() -> None:
    none, few, enough = torch.zeros(50, 1), torch.zeros(50, 1), torch.zeros(50, 1)
    few[:4] = 3.5
    enough[:5] = 3.5
    quiet = released_statistics(none, (True,), 5).statistics
    hidden = released_statistics(few, (True,), 5)
    assert torch.equal(hidden.statistics.mean, quiet.mean)
    assert torch.equal(hidden.statistics.m2, quiet.m2)
    assert hidden.rare == 1
    assert released_statistics(enough, (True,), 5).statistics.mean.item() > 0


def test_a_few_zeros_among_ones_are_hidden_too() -> None:
    rows = torch.ones(50, 1)
    rows[7] = 0
    released = released_statistics(rows, (True,), 5).statistics
    assert (released.mean.item(), released.m2.item()) == (1.0, 0.0)


def test_inputs_that_are_not_scaled_are_not_described_at_all() -> None:
    rows = torch.randn(50, 2)
    released = released_statistics(rows, (False, True), 5)
    assert released.statistics.mean[0] == 0
    assert released.statistics.m2[0] == 0
    assert released.unscaled == 1
    assert released.statistics.rows == 50


def test_no_rows_give_empty_statistics() -> None:
    released = released_statistics(torch.zeros(0, 2), (True, False), 5)
    assert released.statistics.rows == 0
    assert not released.statistics.mean.any()
