"""Calibration and groups of a site's test rows: what becomes of small cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.metrics import Metric, SkippedMetric, Threshold
from fedmap.metrics.names import metric_names
from fedmap.scoring.calibration_bins import bin_of
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.evaluation import Scoring
from fedmap.scoring.evaluation_terms import (
    Subgroup,
    calibration_terms,
    measure_with_errors,
    subgroup_scores,
)
from fedmap.study.models import model_of
from fedmap.study.plan import parse_plan
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
