"""Figures over sites: by hand, by SciPy, at the bounds, with few sites, and by coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmap.errors import TrainingError
from fedmap.scoring.meta_analysis import FEWEST, pool_estimates, student, wilson

SHARES = st.floats(0.05, 0.95)
ERRORS = st.floats(0.005, 0.2)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 31, 184, 1001])
def test_students_t_is_that_of_scipy(degrees: int) -> None:
    assert student(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-10)


@pytest.mark.parametrize(("events", "rows"), [(0, 10), (3, 10), (50, 200), (200, 200)])
def test_wilsons_interval_is_that_of_scipy(events: int, rows: int) -> None:
    expected = stats.binomtest(events, rows).proportion_ci(method="wilson")
    found = wilson(events / rows, rows)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_no_rows_say_nothing_of_a_share() -> None:
    assert (wilson(0.5, 0).low, wilson(0.5, 0).high) == (0.0, 1.0)


def test_the_random_effects_are_those_worked_out_by_hand() -> None:
    # Slopes 0.6, 1.0, 1.4 with variance 0.01 each: Q = 32, τ² = (32 − 2) / (300 − 100) = 0.15; the weights
    # are 1 / 0.16, the mean 1, Σ w (y − 1)² = 2: Hartung and Knapp's factor is 1, the error √(0.16 / 3).
    found = pool_estimates("calibration_slope", [0.6, 1.0, 1.4], [0.1, 0.1, 0.1], elsewhere=True)
    half = 4.302652729911275 * math.sqrt(0.16 / 3)
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half))
    beyond = 4.302652729911275 * math.sqrt(0.15 + 0.16 / 3)
    assert f"{1 - beyond:.3g} to {1 + beyond:.3g}" in found.note
    assert found.sites == 3


def test_a_site_that_is_unsure_counts_for_less() -> None:
    even = pool_estimates("auroc", [0.7, 0.8, 0.9], [0.02, 0.02, 0.02])
    unsure = pool_estimates("auroc", [0.7, 0.8, 0.9], [0.02, 0.02, 0.3])
    assert unsure.value < even.value


def test_the_interval_is_never_narrower_than_the_plain_one_where_sites_happen_to_agree() -> None:
    found = pool_estimates("calibration_intercept", [0.1, 0.1, 0.1], [0.3, 0.3, 0.3])
    half = student(2) * 0.3 / math.sqrt(3)
    assert found.low == pytest.approx(0.1 - half)
    assert found.high == pytest.approx(0.1 + half)


@pytest.mark.parametrize("sites", range(1, FEWEST))
def test_few_sites_get_a_value_without_an_interval_and_a_word(sites: int) -> None:
    found = pool_estimates("auroc", [0.8] * sites, [0.05] * sites)
    assert found.value == pytest.approx(0.8)
    assert (found.low, found.high) == (None, None)
    assert "no interval" in found.note


def test_sites_of_older_agents_without_errors_are_left_out_or_counted_alike() -> None:
    none = pool_estimates("auroc", [0.6, 0.8], [None, None])
    assert none.value == pytest.approx(0.7)
    assert none.low is None
    assert "no standard errors" in none.note
    some = pool_estimates("auroc", [0.6, 0.8, 0.8, 0.8], [None, 0.05, 0.05, 0.05])
    assert some.value == pytest.approx(0.8)
    assert some.sites == 3
    assert "1 site(s) without a standard error" in some.note


def test_no_site_at_all_is_an_error_and_no_figure() -> None:
    with pytest.raises(TrainingError):
        pool_estimates("auroc", [], [])


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_a_site_at_the_bound_neither_breaks_nor_rules_the_figure(bound: float) -> None:
    found = pool_estimates("sensitivity", [0.8, 0.8, bound], [0.02, 0.02, 0.0])
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    usual = pool_estimates("sensitivity", [0.8, 0.8, bound], [0.02, 0.02, 0.03])
    assert 0.5 < usual.value < 0.97


@given(st.lists(st.tuples(SHARES, ERRORS), min_size=FEWEST, max_size=12))
def test_the_figure_lies_among_its_sites_and_inside_its_interval(sites: list[tuple[float, float]]) -> None:
    values, errors = zip(*sites, strict=True)
    found = pool_estimates("brier", values, errors)
    assert found.low is not None
    assert found.high is not None
    edge = [min(max(value, error), 1 - error) for value, error in sites]
    assert min(edge) - 1e-9 <= found.value <= max(edge) + 1e-9
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0


@given(st.lists(st.tuples(st.floats(-3, 3), ERRORS), min_size=1, max_size=8))
def test_the_order_of_the_sites_does_not_matter(sites: list[tuple[float, float]]) -> None:
    values, errors = zip(*sites, strict=True)
    turned = list(reversed(sites))
    again = pool_estimates("calibration_slope", [v for v, _ in turned], [e for _, e in turned])
    assert again.value == pytest.approx(pool_estimates("calibration_slope", values, errors).value)


def test_the_interval_covers_the_mean_of_the_sites_as_often_as_it_says() -> None:
    rng, covered, studies = np.random.default_rng(5), 0, 400
    for _ in range(studies):
        errors = rng.uniform(0.05, 0.3, 6)
        values = rng.normal(rng.normal(1.0, 0.2, 6), errors)
        found = pool_estimates("calibration_slope", values.tolist(), errors.tolist())
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert 0.93 <= covered / studies <= 1.0
