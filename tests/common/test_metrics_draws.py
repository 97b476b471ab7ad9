"""Draws of a metric: two models see the same ones, and they spread as the standard error says."""

from __future__ import annotations

import numpy as np
import pytest

from fedmap.metrics.classification import classification_metrics, multiclass_metrics
from fedmap.metrics.survival import survival_metrics
from fedmap.metrics.weighted_classification import (
    classification_draws,
    classification_errors,
    multiclass_draws,
    multiclass_errors,
)
from fedmap.metrics.weighted_survival import MOST_ROWS, survival_draws, survival_errors

RNG = np.random.default_rng(0)
TARGET = RNG.integers(0, 2, 300)
RISK = np.clip(0.3 * TARGET + RNG.random(300) * 0.7, 0, 1)


def test_two_models_that_are_one_differ_in_no_draw() -> None:
    results = classification_metrics(RISK, TARGET, 0.5)
    one, other = (classification_draws(RISK, TARGET, 0.5, results, 3, 50) for _ in range(2))
    assert set(one) == {result.name for result in results}
    for name, values in one.items():
        assert values.shape == (50,)
        np.testing.assert_array_equal(values, other[name])
    assert not np.array_equal(one["auroc"], classification_draws(RISK, TARGET, 0.5, results, 4, 50)["auroc"])


def test_draws_spread_as_the_standard_error_says() -> None:
    results = classification_metrics(RISK, TARGET, 0.5)
    errors = classification_errors(RISK, TARGET, 0.5, results, 3)
    draws = classification_draws(RISK, TARGET, 0.5, results, 3, 200)
    for name, error in errors.items():
        assert draws[name].std(ddof=1) == pytest.approx(error)
    by_class = np.stack([1 - RISK, RISK], axis=1)
    several = multiclass_metrics(by_class, TARGET)
    found = multiclass_draws(by_class, TARGET, several, 3, 200)
    for name, error in multiclass_errors(by_class, TARGET, several, 3).items():
        assert found[name].std(ddof=1) == pytest.approx(error)


@pytest.mark.parametrize("rows", [200, MOST_ROWS + 500])
def test_survival_draws_have_the_spread_of_all_rows_also_where_a_part_stands_for_them(rows: int) -> None:
    rng = np.random.default_rng(1)
    score = rng.normal(size=rows)
    time = rng.exponential(np.exp(-score)) + 0.01
    event = rng.random(rows) < 0.7
    grid = np.array([0.5, 1.0])
    risk = -np.expm1(-np.outer(np.exp(score), grid))
    results = survival_metrics(score, risk, grid, 1.0, time, event, time, event)
    arguments = (score, risk, grid, time, event, time, event, results, 5)
    draws = survival_draws(*arguments, draws=200)
    for name, error in survival_errors(*arguments).items():
        assert draws[name].std(ddof=1) == pytest.approx(error)


def test_without_an_event_there_are_no_draws() -> None:
    nobody = np.zeros(40, dtype=bool)
    score, time, grid = np.arange(40.0), np.ones(40), np.array([1.0])
    assert survival_draws(score, None, grid, time, nobody, time, nobody, (), 1, draws=10) == {}
