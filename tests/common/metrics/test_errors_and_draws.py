"""How sure a metric is: weighted metrics are the measured ones, and their spread is the real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmap.metrics import Metric, SkippedMetric
from fedmap.metrics.classification import BinaryRows, binary_scores, multiclass_scores
from fedmap.metrics.scores import DRAWS, Scores
from fedmap.metrics.survival import MOST_ROWS, SurvivalRows, survival_scores
from tests.common.metrics.measured import value

Floats = NDArray[np.float64]
GRID = np.arange(1.0, 6.0)


def binary(rows: int, seed: int, places: int = 2, threshold: float = 0.5) -> Scores[BinaryRows]:
    rng = np.random.default_rng(seed)
    risk = rng.beta(2, 3, rows).round(places)
    return binary_scores(risk, (rng.random(rows) < risk).astype(np.int64), threshold)


def multiclass(rows: int, seed: int) -> Scores[Any]:
    rng = np.random.default_rng(seed)
    risk = rng.dirichlet([2, 1, 1], rows)
    return multiclass_scores(risk, np.array([rng.choice(3, p=row) for row in risk]))


def follow_up(rows: int, seed: int) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Scores, risks, times and events; tied scores, censoring throughout, all ends at 5."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0, 1, rows).round(1)
    happens, leaves = rng.exponential(8 * np.exp(-score)), np.minimum(rng.exponential(12, rows), 5.0)
    risk = np.asarray(-np.expm1(-np.outer(np.exp(score) / 8, GRID)))
    return score, risk, np.minimum(happens, leaves), happens <= leaves


def survival(rows: int, seed: int, train: int | None = None) -> Scores[SurvivalRows]:
    """`train`: the seed of other rows that give the censoring."""
    score, risk, time, event = follow_up(rows, seed)
    _, _, train_time, train_event = (None, None, time, event) if train is None else follow_up(400, train)
    return survival_scores(score, risk, GRID, 5.0, time, event, train_time, train_event)


@pytest.mark.parametrize(
    "scores",
    [
        binary(40, 1, threshold=0.4),
        binary(300, 1, threshold=0.4),
        multiclass(120, 4),
        survival(60, 5, 6),
        survival(400, 5, 6),
    ],
    ids=lambda scores: f"{scores.kind} {scores.count}",
)
def test_with_equal_weights_weighted_metrics_are_the_measured_ones_and_each_has_an_error(
    scores: Scores[Any],
) -> None:
    results = scores.measure()
    assert [one.name for one in results if isinstance(one, Metric)] == list(scores.errors(results, 1))
    for one in results:
        found = scores.measures[one.name].weighted(scores.rows, np.ones((1, scores.count)))
        assert found[0] == pytest.approx(value(results, one.name), abs=1e-8), one.name


def test_a_weight_of_two_is_the_row_twice() -> None:
    scores = binary(80, 2)
    weights = np.random.default_rng(3).integers(1, 4, 80)
    twice = np.repeat(np.arange(80), weights)
    for metric in binary_scores(scores.rows.risk[twice], scores.rows.target[twice], 0.5).measure():
        assert isinstance(metric, Metric)
        found = scores.measures[metric.name].weighted(scores.rows, weights[None, :].astype(float))
        assert found[0] == pytest.approx(metric.value, abs=1e-8), metric.name


def test_the_errors_of_binary_metrics_are_the_spread_over_real_repetitions() -> None:
    drawn = [binary(250, seed, 8, 0.4).measure() for seed in range(150)]
    scores = binary(250, 0, 8, 0.4)
    for name, error in scores.errors(scores.measure(), 9).items():
        values = [m.value for results in drawn for m in results if m.name == name and isinstance(m, Metric)]
        assert error == pytest.approx(np.std(values), rel=0.3), name


def test_the_errors_of_survival_metrics_are_the_spread_over_real_repetitions() -> None:
    errors: dict[str, list[float]] = {}
    drawn: dict[str, list[float]] = {}
    for seed in range(60):
        scores = survival(200, seed, 1000)
        results = scores.measure()
        for name, error in scores.errors(results, seed).items():
            errors.setdefault(name, []).append(error)
            drawn.setdefault(name, []).append(value(results, name))
    assert len(drawn) == 6
    for name, values in drawn.items():
        assert np.mean(errors[name]) == pytest.approx(np.std(values), rel=0.25), name


@pytest.mark.parametrize(
    "scores",
    [binary(300, 0), multiclass(300, 0), survival(200, 1), survival(MOST_ROWS + 500, 1)],
    ids=lambda scores: f"{scores.kind} {scores.count}",
)
def test_the_same_seed_draws_the_same_and_draws_spread_as_the_standard_error_says(
    scores: Scores[Any],
) -> None:
    """Also where a part of the rows stands for all."""
    results = scores.measure()
    errors, draws = scores.errors(results, 7), scores.draws(results, 7, DRAWS)
    assert errors == scores.errors(results, 7)
    assert errors != scores.errors(results, 8)
    assert draws.keys() == errors.keys()
    again = scores.draws(results, 7, DRAWS)
    for name, error in errors.items():
        assert draws[name].std(ddof=1) == pytest.approx(error)
        np.testing.assert_array_equal(draws[name], again[name])


def test_a_metric_that_was_skipped_has_no_error() -> None:
    scores = binary_scores(np.linspace(0.1, 0.6, 30), np.zeros(30, dtype=np.int64), 0.5)
    results = scores.measure()
    errors = scores.errors(results, 1)
    skipped = {metric.name for metric in results if isinstance(metric, SkippedMetric)}
    assert skipped
    assert not skipped & set(errors)
    assert errors["brier"] > 0


def test_every_case_found_among_few_is_not_proof_of_none_missed() -> None:
    target = np.array([0] * 20 + [1] * 10)
    scores = binary_scores(np.where(target == 1, 0.9, 0.1) + np.linspace(0, 0.05, 30), target, 0.5)
    errors = scores.errors(scores.measure(), 1)
    assert 0.05 < errors["sensitivity"] < 0.2
    assert errors["auroc"] == errors["sensitivity"]


def test_many_rows_are_judged_by_a_part_of_them_and_in_blocks_of_draws() -> None:
    scores = survival(2 * MOST_ROWS, 3)
    found = scores.errors(scores.measure(["brier"]), 1)
    weights = np.random.default_rng(1).standard_exponential((DRAWS, scores.count))
    spread = scores.measures["brier"].weighted(scores.rows, weights).std()
    assert found == {"brier": pytest.approx(spread, rel=0.2)}
    many = binary(15_000, 1)
    errors = many.errors(many.measure(), 1)
    assert 0 < errors["sensitivity"] < 1 / np.sqrt(many.rows.target.sum())


def test_a_part_without_events_says_nothing_rather_than_failing() -> None:
    score, risk, time, event = follow_up(MOST_ROWS + 500, 3)
    lone = np.zeros_like(event)
    lone[int(np.argmin(time))] = True
    scores = survival_scores(score, risk, GRID, 5.0, time, lone, time, event)
    results = scores.measure()
    for seed in range(6):
        assert all(np.isfinite(list(scores.errors(results, seed).values())))
    nobody = survival_scores(score, risk, GRID, 5.0, time, np.zeros_like(event), time, event)
    assert nobody.draws(results, 1, 10) == {}
