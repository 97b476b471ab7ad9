"""Calibration in bins: no small cell leaves, no row is lost, and observed risks are right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter

from fedmap.metrics.follow_up import FollowUp, observed_risk
from fedmap.scoring.calibration_bins import BINS, BinTerms, bin_of, bin_range, joined_bins, pool_bins
from fedmap.scoring.meta_analysis import wilson

FLOOR = 5
CELLS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=BINS, max_size=BINS
)  # rows with and without an event, by bin


@given(CELLS)
def test_no_run_of_bins_has_a_small_cell_and_none_is_lost_without_need(cells: list[tuple[int, int]]) -> None:
    def may_leave(run: Sequence[int]) -> bool:
        with_event, without = (sum(cells[place][k] for place in run) for k in (0, 1))
        enough = with_event + without >= FLOOR
        return enough and not 0 < with_event < FLOOR and not 0 < without < FLOOR

    places = [place for place, (a, b) in enumerate(cells) if a + b]
    runs = joined_bins(places, may_leave)
    assert all(may_leave(run) for run in runs)
    told = [place for run in runs for place in run]
    assert told == sorted(told)
    assert told == (places if places and may_leave(places) else [])


def test_a_bin_that_is_large_enough_stays_by_itself() -> None:
    assert joined_bins([1, 4, 7], lambda _: True) == [(1,), (4,), (7,)]
    assert joined_bins([1, 4, 7], lambda run: len(run) > 1) == [(1, 4, 7)]
    assert joined_bins([], lambda _: True) == []


@pytest.mark.parametrize(
    ("risk", "place"), [(0.0, 0), (0.02, 1), (0.019, 0), (0.95, BINS - 1), (1.0, BINS - 1)]
)
def test_every_risk_has_its_bin(risk: float, place: int) -> None:
    assert bin_of(risk) == place
    low, high = bin_range(place)
    assert low <= risk <= high


def test_sites_are_pooled_by_their_rows_with_wilsons_interval() -> None:
    pooled = pool_bins(
        {
            "north": [BinTerms(2, 100, 7.0, 10.0, 100.0), BinTerms(7, 50, 22.0, 25.0, 50.0)],
            "south": [BinTerms(2, 300, 24.0, 18.0, 200.0)],
        }
    )
    assert [one.rows for one in pooled] == [400, 50]
    assert pooled[0].predicted == pytest.approx(31 / 400)
    assert pooled[0].observed == pytest.approx(28 / 400)
    interval = wilson(28 / 400, 300)
    assert (pooled[0].low, pooled[0].high) == pytest.approx((interval.low, interval.high))
    assert pool_bins({}) == ()


def test_the_observed_risk_is_that_of_kaplan_and_meier_also_with_ties() -> None:
    rng = np.random.default_rng(1)
    time = rng.exponential(5, 200).round(1) + 0.1
    event = rng.random(200) < 0.6
    found = observed_risk(FollowUp(time, event), 4.0)
    curve = KaplanMeierFitter().fit(time, event)
    assert found.risk == pytest.approx(1 - float(curve.predict(4.0)), abs=1e-12)
    assert found.events == int((event & (time <= 4.0)).sum())
    assert found.followed == int((time > 4.0).sum() + ((time == 4.0) & ~event).sum())


def test_without_censoring_the_effective_rows_are_the_rows() -> None:
    time = np.arange(1.0, 41.0)
    found = observed_risk(FollowUp(time, np.ones(40, dtype=np.bool_)), 10.5)
    assert found.risk == pytest.approx(0.25)
    assert found.effective_rows == pytest.approx(40)


def test_greenwoods_variance_is_the_one_worked_out_by_hand() -> None:
    # Two events among 4 and among 2 at risk: S = 3/4 · 1/2, Σ d / (n (n − d)) = 1/12 + 1/2.
    rows = FollowUp(np.array([1.0, 2.0, 3.0, 9.0]), np.array([True, False, True, False]))
    found = observed_risk(rows, 5.0)
    assert found.risk == pytest.approx(1 - 0.375)
    assert found.variance == pytest.approx(0.375**2 * (1 / 12 + 1 / 2))
    assert 0 < found.effective_rows < 4


def test_no_event_and_nobody_left_are_risks_too() -> None:
    nobody = observed_risk(FollowUp(np.array([1.0, 2.0]), np.array([False, False])), 5.0)
    assert (nobody.risk, nobody.events, nobody.followed) == (0.0, 0, 0)
    everybody = observed_risk(FollowUp(np.array([1.0, 2.0]), np.array([True, True])), 5.0)
    assert (everybody.risk, everybody.effective_rows) == (1.0, 2.0)
