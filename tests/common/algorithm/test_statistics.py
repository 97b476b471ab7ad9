"""Pooled feature statistics against numpy on the pooled rows."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedmap.algorithm.pooling.statistics import (
    FeatureStatistics,
    feature_statistics,
    make_scaler,
    pool_statistics,
)
from fedmap.errors import TrainingError

FEATURES = 2
VALUE = st.floats(-1e4, 1e4, width=32)


def _site(draw: st.DrawFn) -> NDArray[np.float32]:
    rows = draw(st.integers(0, 6))
    return draw(hnp.arrays(np.float32, (rows, FEATURES), elements=VALUE))


@st.composite
def sites(draw: st.DrawFn) -> list[NDArray[np.float32]]:
    return [_site(draw) for _ in range(draw(st.integers(1, 5)))]


def _pool(parts: list[NDArray[np.float32]]) -> FeatureStatistics:
    return pool_statistics(
        {f"site-{i}": feature_statistics(torch.from_numpy(part)) for i, part in enumerate(parts)}
    )


@given(sites())
def test_pooled_statistics_are_those_of_the_pooled_rows(parts: list[NDArray[np.float32]]) -> None:
    rows = np.concatenate(parts).astype(np.float64)
    pooled = _pool(parts)
    assert pooled.rows == len(rows)
    if len(rows):
        assert pooled.mean.numpy() == pytest.approx(rows.mean(0), rel=1e-12, abs=1e-9)
        assert pooled.m2.numpy() == pytest.approx(((rows - rows.mean(0)) ** 2).sum(0), rel=1e-9, abs=1e-6)


@given(sites())
def test_the_scaler_standardises_the_pooled_rows(parts: list[NDArray[np.float32]]) -> None:
    rows = np.concatenate(parts).astype(np.float64)
    if len(rows) < 2:
        return
    scaler = make_scaler(_pool(parts), (True,) * FEATURES)
    deviation = rows.std(0, ddof=1)
    expected = np.where(deviation >= np.finfo(np.float32).tiny, deviation, 1.0)
    expected = np.where(np.ptp(rows, axis=0) > 0, expected, 1.0)
    assert scaler.mean.numpy() == pytest.approx(rows.mean(0), rel=1e-6, abs=1e-6)
    assert scaler.deviation.numpy() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@given(sites(), st.randoms(use_true_random=False))
def test_the_order_in_which_sites_answer_changes_no_bit(
    parts: list[NDArray[np.float32]], shuffler: Random
) -> None:
    named = [(f"site-{i}", feature_statistics(torch.from_numpy(part))) for i, part in enumerate(parts)]
    one = pool_statistics(dict(named))
    shuffler.shuffle(named)
    other = pool_statistics(dict(named))
    assert one.rows == other.rows
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.m2, other.m2)


def test_large_values_with_a_small_spread_keep_their_spread() -> None:
    """n, Σx and Σx² would lose this one to cancellation."""
    parts = [np.array([[1e6], [1e6 + 1]], np.float32), np.array([[1e6 + 2]], np.float32)]
    assert float(_pool(parts).m2[0]) == pytest.approx(2.0, rel=1e-12)


@given(VALUE, st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(lambda n: sum(n) >= 2))
def test_a_constant_feature_keeps_deviation_one(value: float, rows: list[int]) -> None:
    scaler = make_scaler(_pool([np.full((n, FEATURES), value, np.float32) for n in rows]), (True, True))
    assert scaler.deviation.tolist() == [1.0, 1.0]
    assert scaler.apply(torch.full((1, FEATURES), value)).tolist() == [[0.0, 0.0]]


def test_a_feature_that_is_not_scaled_is_left_alone_bit_for_bit() -> None:
    rows = torch.tensor([[0.1, 5.0], [1.0, 9.0], [0.0, 2.0]])
    scaled = make_scaler(feature_statistics(rows), (False, True)).apply(rows)
    assert torch.equal(scaled[:, 0], rows[:, 0])
    assert float(scaled[:, 1].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(scaled[:, 1].std()) == pytest.approx(1.0, abs=1e-6)


def test_no_sites_cannot_be_pooled() -> None:
    with pytest.raises(TrainingError):
        pool_statistics({})


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_cannot_scale(rows: int) -> None:
    with pytest.raises(TrainingError, match="too few"):
        make_scaler(feature_statistics(torch.ones(rows, FEATURES)), (True, True))
