"""The four log-weights and their normalisation, by hand and by property."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.algorithm.prior.weights import log_weight, normalise
from fedmap.algorithm.settings import WeightingRule
from fedmap.errors import TrainingError

LOGS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("per_sample", -2.0),  # −(6/4 + 0.5)
        ("literal", -6.5),  # −6 − 0.5
        ("reference", -1.625),  # −(6/4 + 0.5/4)
        ("sample_count", 1.3862943611198906),  # log 4
    ],
)
def test_log_weight_by_hand(rule: WeightingRule, expected: float) -> None:
    assert log_weight(rule, loss=6.0, penalty=0.5, rows=4) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("rule", ["per_sample", "literal", "reference", "sample_count"])
@pytest.mark.parametrize(
    ("loss", "penalty", "rows"),
    [(math.nan, 0.1, 5), (math.inf, 0.1, 5), (1.0, math.nan, 5), (1.0, math.inf, 5), (1.0, 0.1, 0)],
)
def test_a_diverged_or_empty_fit_gets_no_weight(
    rule: WeightingRule, loss: float, penalty: float, rows: int
) -> None:
    with pytest.raises(TrainingError):
        log_weight(rule, loss, penalty, rows)


@pytest.mark.parametrize("offset", [-1e6, 0.0, 1e6])
def test_shares_survive_weights_far_outside_the_range_of_exp(offset: float) -> None:
    shares = normalise([offset, offset + math.log(3.0)])
    assert shares == pytest.approx([0.25, 0.75], abs=1e-9)


def test_the_paper_weight_gives_all_to_the_smallest_site_and_per_sample_does_not() -> None:
    """Three sites that fit equally well per row: ω = P(Z|θ)·exp(−R) only rewards having few rows."""
    rows = [50, 500, 5000]
    literal = normalise([log_weight("literal", 0.6 * n, 0.1, n) for n in rows])
    assert literal == pytest.approx([1.0, 0.0, 0.0], abs=1e-50)
    per_sample = normalise([log_weight("per_sample", 0.6 * n, 0.1, n) for n in rows])
    assert per_sample == pytest.approx([1 / 3, 1 / 3, 1 / 3])


@given(LOGS)
def test_shares_are_not_negative_and_sum_to_one(logs: list[float]) -> None:
    shares = normalise(logs)
    assert shares.dtype == np.float64
    assert bool((shares >= 0).all())
    assert float(shares.sum()) == pytest.approx(1.0, abs=1e-12)


@given(LOGS)
def test_equal_weights_get_exactly_equal_shares(logs: list[float]) -> None:
    shares = normalise(logs + logs)
    assert np.array_equal(shares[: len(logs)], shares[len(logs) :])
    assert shares[: len(logs)] * 2 == pytest.approx(normalise(logs), abs=1e-12)


@given(LOGS)
def test_a_larger_weight_never_gets_a_smaller_share(logs: list[float]) -> None:
    shares = normalise(logs)
    assert bool((np.diff(shares[np.argsort(logs)]) >= 0).all())


@given(LOGS, st.integers(-1000, 1000))
def test_only_differences_of_log_weights_matter(logs: list[float], shift: int) -> None:
    assert normalise([log + shift for log in logs]) == pytest.approx(normalise(logs), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("logs", [[], [0.0, math.nan], [0.0, math.inf], [-math.inf, 0.0], [-math.inf]])
def test_a_weight_that_is_not_finite_is_refused(logs: list[float]) -> None:
    with pytest.raises(TrainingError):
        normalise(logs)
