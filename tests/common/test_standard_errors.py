"""How sure a metric is: weighted metrics are the measured ones, and their spread is the real one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmap.metrics import Metric, SkippedMetric
from fedmap.metrics import weighted_classification as by_class
from fedmap.metrics import weighted_survival as by_time
from fedmap.metrics.classification import classification_metrics, multiclass_metrics
from fedmap.metrics.follow_up import FollowUp
from fedmap.metrics.resampling import DRAWS
from fedmap.metrics.survival import survival_metrics
from fedmap.metrics.weighted_classification import classification_errors, multiclass_errors
from fedmap.metrics.weighted_survival import MOST_ROWS, survival_errors

Floats = NDArray[np.float64]
GRID = np.arange(1.0, 6.0)


def binary(rows: int, seed: int, places: int = 2) -> tuple[Floats, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    risk = rng.beta(2, 3, rows).round(places)
    return risk, (rng.random(rows) < risk).astype(np.int64)


def follow_up(rows: int, seed: int) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Scores, risks, times and events; tied scores, censoring throughout, all ends at 5."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0, 1, rows).round(1)
    happens, leaves = rng.exponential(8 * np.exp(-score)), np.minimum(rng.exponential(12, rows), 5.0)
    risk = np.asarray(-np.expm1(-np.outer(np.exp(score) / 8, GRID)))
    return score, risk, np.minimum(happens, leaves), happens <= leaves


@pytest.mark.parametrize("rows", [40, 300])
def test_with_equal_weights_binary_metrics_are_the_measured_ones(rows: int) -> None:
    risk, target = binary(rows, 1)
    scored = by_class._Binary(risk, target, risk >= 0.4)
    for metric in classification_metrics(risk, target, 0.4):
        assert isinstance(metric, Metric)
        found = by_class._BINARY[metric.name](scored, np.ones((1, rows)))
        assert found[0] == pytest.approx(metric.value, abs=1e-9), metric.name


def test_a_weight_of_two_is_the_row_twice() -> None:
    risk, target = binary(80, 2)
    weights = np.random.default_rng(3).integers(1, 4, 80)
    twice = np.repeat(np.arange(80), weights)
    scored = by_class._Binary(risk, target, risk >= 0.5)
    for metric in classification_metrics(risk[twice], target[twice], 0.5):
        assert isinstance(metric, Metric)
        found = by_class._BINARY[metric.name](scored, weights[None, :].astype(float))
        assert found[0] == pytest.approx(metric.value, abs=1e-8), metric.name


def test_with_equal_weights_multiclass_metrics_are_the_measured_ones() -> None:
    rng = np.random.default_rng(4)
    risk = rng.dirichlet([2, 1, 1], 120)
    target = np.array([rng.choice(3, p=row) for row in risk])
    scored = by_class._Multiclass(risk, target)
    results = multiclass_metrics(risk, target)
    for metric in results:
        assert isinstance(metric, Metric)
        found = by_class._MULTICLASS[metric.name](scored, np.ones((1, 120)))
        assert found[0] == pytest.approx(metric.value, abs=1e-9), metric.name
    assert set(multiclass_errors(risk, target, results, 1)) == {metric.name for metric in results}


@pytest.mark.parametrize("rows", [60, 400])
def test_with_equal_weights_survival_metrics_are_the_measured_ones(rows: int) -> None:
    score, risk, time, event = follow_up(rows, 5)
    _, _, train_time, train_event = follow_up(rows, 6)
    test, train = FollowUp(time, event), FollowUp(train_time, train_event)
    scored = by_time._Scored(score, risk, GRID, test, train)
    measured = survival_metrics(score, risk, GRID, 5.0, time, event, train_time, train_event)
    assert {metric.name for metric in measured} == set(by_time._TABLE)
    for metric in measured:
        assert isinstance(metric, Metric)
        found = by_time._TABLE[metric.name](scored, np.ones((1, rows)))
        assert found[0] == pytest.approx(metric.value, abs=1e-8), metric.name


def test_the_errors_of_binary_metrics_are_the_spread_over_real_repetitions() -> None:
    drawn = [classification_metrics(*binary(250, seed, 8), 0.4) for seed in range(150)]
    risk, target = binary(250, 0, 8)
    errors = classification_errors(risk, target, 0.4, classification_metrics(risk, target, 0.4), 9)
    for place, metric in enumerate(drawn[0]):
        values = [m.value for results in drawn if isinstance(m := results[place], Metric)]
        assert errors[metric.name] == pytest.approx(np.std(values), rel=0.3), metric.name


def test_the_errors_of_survival_metrics_are_the_spread_over_real_repetitions() -> None:
    _, _, train_time, train_event = follow_up(400, 1000)
    errors: dict[str, list[float]] = {}
    drawn: dict[str, list[float]] = {}
    for seed in range(60):
        score, risk, time, event = follow_up(200, seed)
        results = survival_metrics(score, risk, GRID, 5.0, time, event, train_time, train_event)
        for metric in results:
            assert isinstance(metric, Metric)
            drawn.setdefault(metric.name, []).append(metric.value)
        found = survival_errors(score, risk, GRID, time, event, train_time, train_event, results, seed)
        for name, error in found.items():
            errors.setdefault(name, []).append(error)
    for name, values in drawn.items():
        assert np.mean(errors[name]) == pytest.approx(np.std(values), rel=0.25), name


def test_the_same_seed_gives_the_same_errors_and_another_seed_others() -> None:
    risk, target = binary(60, 1)
    results = classification_metrics(risk, target, 0.5)
    first = classification_errors(risk, target, 0.5, results, 7)
    assert first == classification_errors(risk, target, 0.5, results, 7)
    assert first != classification_errors(risk, target, 0.5, results, 8)


def test_a_metric_that_was_skipped_has_no_error() -> None:
    risk = np.linspace(0.1, 0.6, 30)
    target = np.zeros(30, dtype=np.int64)
    results = classification_metrics(risk, target, 0.5)
    errors = classification_errors(risk, target, 0.5, results, 1)
    skipped = {metric.name for metric in results if isinstance(metric, SkippedMetric)}
    assert skipped
    assert not skipped & set(errors)
    assert errors["brier"] > 0


def test_every_case_found_among_few_is_not_proof_of_none_missed() -> None:
    target = np.array([0] * 20 + [1] * 10)
    risk = np.where(target == 1, 0.9, 0.1) + np.linspace(0, 0.05, 30)
    errors = classification_errors(risk, target, 0.5, classification_metrics(risk, target, 0.5), 1)
    assert 0.05 < errors["sensitivity"] < 0.2
    assert errors["auroc"] == errors["sensitivity"]


def test_many_rows_are_judged_by_a_part_of_them_and_in_blocks_of_draws() -> None:
    rows = 2 * MOST_ROWS
    score, risk, time, event = follow_up(rows, 3)
    results = survival_metrics(score, risk, GRID, 5.0, time, event, time, event, only=["brier"])
    found = survival_errors(score, risk, GRID, time, event, time, event, results, 1)
    scored = by_time._Scored(score, risk, GRID, FollowUp(time, event), FollowUp(time, event))
    weights = np.random.default_rng(1).standard_exponential((DRAWS, rows))
    assert found["brier"] == pytest.approx(by_time._brier(scored, weights).std(), rel=0.2)
    many, target = binary(15_000, 1)
    errors = classification_errors(many, target, 0.5, classification_metrics(many, target, 0.5), 1)
    share = target.mean()
    assert 0 < errors["sensitivity"] < 1 / np.sqrt(share * 15_000)


def test_a_part_without_events_says_nothing_rather_than_failing() -> None:
    score, risk, time, event = follow_up(MOST_ROWS + 500, 3)
    lone = np.zeros_like(event)
    lone[int(np.argmin(time))] = True
    results = survival_metrics(score, risk, GRID, 5.0, time, lone, time, event)
    for seed in range(6):
        errors = survival_errors(score, risk, GRID, time, lone, time, event, results, seed)
        assert all(np.isfinite(list(errors.values())))
