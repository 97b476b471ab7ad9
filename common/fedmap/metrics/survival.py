"""Metrics of survival predictions, from scikit-survival; and under row weights, for their errors.

    c_index                Harrell's, over the whole follow-up; equal scores count a half
    c_index_ipcw           Uno's, for events before the horizon
    brier                  at the horizon, weighted by the inverse probability of censoring (IPCW)
    integrated_brier       mean over the grid's span, trapezoid rule, IPCW
    calibration_slope      coefficient of the log-hazard in a Cox model (Efron ties) up to the horizon
    calibration_intercept  shift of the log cumulative hazard that makes the mean predicted risk at the
                           horizon equal the Kaplan-Meier risk (see calibration.py)

Censoring is estimated from training rows and never extrapolated: a Brier score beyond their follow-up is
skipped; the integrated score and Uno's C are measured over the part they cover, with a note. Baseline
hazards are not estimated here.

With equal weights a weighted metric is its value: a test holds the two together. Pairs of rows are compared
all at once, so of many rows a seeded part stands for all, and errors are scaled by the root of its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from sksurv.exceptions import NoComparablePairException
from sksurv.metrics import brier_score, concordance_index_ipcw, integrated_brier_score
from sksurv.nonparametric import CensoringDistributionEstimator, SurvivalFunctionEstimator

from fedmap.algorithm.seeding import numpy_stream
from fedmap.errors import TrainingError
from fedmap.metrics.calibration import (
    NEWTON_CLOSE,
    cloglog,
    cloglog_intercept,
    shift_of_draws,
    standardised,
)
from fedmap.metrics.follow_up import FollowUp, concordance, cox_slope, observed_risk
from fedmap.metrics.inputs import AnyArray, Bools, Floats, checked_probabilities, finite_scores
from fedmap.metrics.results import Noted, NotMeasurableError, row_count
from fedmap.metrics.scores import Measure, Part, Scores, mean

MOST_ROWS = 1500
_STEPS = 20


def survival_scores(
    log_hazard: AnyArray,
    risk_at_grid: AnyArray | None,
    grid: AnyArray,
    horizon: float,
    time: AnyArray,
    event: AnyArray,
    train_time: AnyArray,
    train_event: AnyArray,
) -> Scores[SurvivalRows]:
    """A survival prediction on test rows (`time`, `event`).

    `log_hazard` (rows,) ranks them, the highest first to have the event. `risk_at_grid` (rows, grid) is the
    probability of the event by each grid time, None without a baseline hazard. `train_time` and
    `train_event` are what censoring is estimated from: the site's training rows or, where all rows are test
    rows, the test rows themselves.
    """
    test = FollowUp.checked(time, event, "test follow-up times")
    train = FollowUp.checked(train_time, train_event, "training follow-up times")
    times = _checked_grid(grid, horizon)
    count = test.time.size
    risk = None
    if risk_at_grid is not None:
        risk = checked_probabilities(risk_at_grid, "risks", (count, times.size))
    rows = SurvivalRows(finite_scores(log_hazard, "log-hazards", (count,)), risk, times, test, train)
    return Scores("cox", SURVIVAL, rows, count, rows.part)


def _checked_grid(grid: AnyArray, horizon: float) -> Floats:
    times = np.asarray(grid, dtype=np.float64)
    rising = times.ndim == 1 and times.size > 0 and bool(np.all(np.diff(times, prepend=0.0) > 0))
    if not rising or not np.isclose(times[-1], horizon, rtol=1e-9, atol=0.0):
        raise TrainingError(
            "the grid of times must rise from above zero to the horizon",
            hint="leave the grid out of the plan's [task] section for ten equal steps up to the horizon",
        )
    return times


@dataclass(frozen=True)
class SurvivalRows:
    log_hazard: Floats  # (rows,)
    risk: Floats | None  # (rows, grid)
    grid: Floats  # (grid,), the last is the horizon
    test: FollowUp
    train: FollowUp

    @property
    def horizon(self) -> float:
        return float(self.grid[-1])

    @property
    def count(self) -> str:
        return row_count(self.test.time.size)

    def absolute_risk(self) -> Floats:
        if self.risk is None:
            raise NotMeasurableError("no baseline hazard, so no absolute risks")
        return self.risk

    def test_until(self, limit: float) -> FollowUp:
        """Test follow-up stopped at a limit; without any event scikit-survival measures nothing."""
        return _with_an_event(self.test.until(limit), "test")

    def train_until(self, limit: float) -> FollowUp:
        """Training follow-up stopped at a limit; without any event scikit-survival refuses it."""
        return _with_an_event(self.train.until(limit), "training")

    def need_test_rows_at_the_horizon(self) -> None:
        if not self.test.reaches(self.horizon):
            raise NotMeasurableError(f"none of {self.count} is followed up to the horizon")

    def covered(self) -> Bools:
        """(grid,) the times that test and training follow-up both reach."""
        first = self.test.time.min()
        return np.array([t >= first and self.test.reaches(t) and self.train.reaches(t) for t in self.grid])

    def part(self, seed: int) -> Part[SurvivalRows] | None:
        """At most MOST_ROWS of the test rows; None where no event is among them."""
        rows = self.test.time.size
        chosen = np.arange(rows)
        if rows > MOST_ROWS:
            chosen = np.sort(numpy_stream(seed).permutation(rows)[:MOST_ROWS])
        test = FollowUp(self.test.time[chosen], self.test.event[chosen])
        if not test.until(self.horizon).event.any():
            return None
        risk = None if self.risk is None else self.risk[chosen]
        part = SurvivalRows(self.log_hazard[chosen], risk, self.grid, test, self.train)
        return Part(part, chosen.size, int(test.event.sum()), math.sqrt(chosen.size / rows))


def _with_an_event(follow_up: FollowUp, part: str) -> FollowUp:
    if not follow_up.event.any():
        rows = row_count(follow_up.time.size, part)
        raise NotMeasurableError(f"no event within the time measured among {rows}")
    return follow_up


def _c_index_ipcw(s: SurvivalRows) -> float | Noted:
    test = s.test_until(s.horizon)
    train = s.train_until(s.horizon)
    # Weights are known and finite strictly before the last training time.
    tau = min(s.horizon, float(train.time.max()))
    if not np.any(test.event & (test.time < tau)):
        raise NotMeasurableError(f"no event within the time measured among {s.count}")
    try:
        with np.errstate(invalid="ignore"):  # 0/0 where nobody is followed longer than the only events
            index = float(
                concordance_index_ipcw(
                    train.structured(), test.structured(), s.log_hazard, tau=tau, tied_tol=0.0
                )[0]
            )
    except NoComparablePairException:
        index = np.nan
    if not np.isfinite(index):
        raise NotMeasurableError(f"no comparable pair among {s.count}")
    if tau < s.horizon:
        return Noted(index, "measured up to the end of training follow-up, before the horizon")
    return index


def _brier(s: SurvivalRows) -> float:
    survival = 1.0 - s.absolute_risk()[:, -1]
    test = s.test_until(s.horizon)
    train = s.train_until(s.horizon)
    s.need_test_rows_at_the_horizon()
    if not s.train.reaches(s.horizon):
        rows = row_count(train.time.size, "training")
        raise NotMeasurableError(f"none of {rows} is followed up to the horizon, so censoring is unknown")
    return float(brier_score(train.structured(), test.structured(), survival, s.horizon)[1][0])


def _integrated_brier(s: SurvivalRows) -> float | Noted:
    survival = 1.0 - s.absolute_risk()
    s.test_until(s.horizon)  # no event at all is the plainer reason, given first
    covered = s.covered()
    of_the_grid = f"{np.count_nonzero(covered)} of {s.grid.size} grid times"
    if np.count_nonzero(covered) < 2:
        raise NotMeasurableError(f"test and training follow-up cover only {of_the_grid}, two are needed")
    times = s.grid[covered]
    # Stopping follow-up at the last covered time keeps every row's weight defined.
    test = s.test_until(times[-1])
    train = s.train_until(times[-1])
    score = float(integrated_brier_score(train.structured(), test.structured(), survival[:, covered], times))
    return score if covered.all() else Noted(score, f"integrated over only {of_the_grid}")


def _calibration_intercept(s: SurvivalRows) -> float:
    risk = s.absolute_risk()[:, -1]
    test = s.test_until(s.horizon)
    s.need_test_rows_at_the_horizon()
    kaplan_meier = SurvivalFunctionEstimator().fit(test.structured())
    observed = 1.0 - float(kaplan_meier.predict_proba([s.horizon])[0])
    return cloglog_intercept(risk, observed)


def _weighted_c_index(s: SurvivalRows, weights: Floats) -> Floats:
    return _share_of_pairs(s.test, s.log_hazard, np.ones(s.test.time.size), weights)


def _weighted_ipcw(s: SurvivalRows, weights: Floats) -> Floats:
    test, train = s.test.until(s.horizon), s.train.until(s.horizon)
    tau = min(s.horizon, float(train.time.max()))
    seen = _uncensored(train, test.time)
    pull = np.where(test.event & (test.time < tau) & (seen > 0), np.square(1 / np.maximum(seen, 1e-12)), 0.0)
    return _share_of_pairs(test, s.log_hazard, pull, weights)


def _share_of_pairs(follow_up: FollowUp, score: Floats, pull: Floats, weights: Floats) -> Floats:
    """The share of comparable pairs (i has its event first, and pulls) in which i has the higher score."""
    time, event = follow_up.time, follow_up.event
    later = (time[:, None] < time) | ((time[:, None] == time) & ~event)
    comparable = (later & event[:, None]) * pull[:, None]  # (rows, rows)
    won = comparable * ((score[:, None] > score) + (score[:, None] == score) / 2)
    with np.errstate(invalid="ignore"):
        return np.asarray(((weights @ won) * weights).sum(1) / ((weights @ comparable) * weights).sum(1))


def _uncensored(train: FollowUp, at: Floats) -> Floats:
    """P(not censored by a time), as training rows show it."""
    censoring = CensoringDistributionEstimator().fit(train.structured())
    return np.asarray(censoring.predict_proba(np.minimum(at, train.time.max())), dtype=np.float64)


def _brier_by_row(s: SurvivalRows, place: int, last: float) -> Floats:
    """(rows,) each row's share of the Brier score at one grid time, censoring stopped at `last`."""
    time, test, train = float(s.grid[place]), s.test.until(last), s.train.until(last)
    risk = s.absolute_risk()[:, place]
    case = (test.time <= time) & test.event
    own = _uncensored(train, test.time)
    there = float(_uncensored(train, np.array([time]))[0])
    cases = np.where(case & (own > 0), np.square(1 - risk) / np.maximum(own, 1e-12), 0.0)
    return cases + np.where(test.time > time, np.square(risk) / max(there, 1e-12), 0.0)


def _weighted_brier(s: SurvivalRows, weights: Floats) -> Floats:
    return mean(_brier_by_row(s, len(s.grid) - 1, s.horizon), weights)


def _weighted_integrated_brier(s: SurvivalRows, weights: Floats) -> Floats:
    covered = np.flatnonzero(s.covered()).tolist()
    if len(covered) < 2:
        return np.full(len(weights), np.nan)
    times = s.grid[covered]
    scores = np.stack([_brier_by_row(s, place, float(times[-1])) for place in covered], axis=1)
    return mean(np.trapezoid(scores, times, axis=1) / (times[-1] - times[0]), weights)


def _weighted_slope(s: SurvivalRows, weights: Floats) -> Floats:
    """Newton's method for a Cox model of one score, all draws at once."""
    test, score = s.test.until(s.horizon), standardised(s.log_hazard)
    order = np.argsort(-test.time, kind="stable")  # the risk set of a row is all up to it, and its ties
    x, happened, time = score.values[order], test.event[order].astype(float), test.time[order]
    last = np.searchsorted(-time, -time, side="right") - 1
    own = weights[:, order]
    slope, step = np.zeros(len(weights)), np.full(len(weights), np.inf)
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            hazard = own * np.exp(slope[:, None] * x)
            zero, one, two = ((hazard * x**power).cumsum(1)[:, last] for power in range(3))
            mean = one / zero
            step = ((own * happened) * (x - mean)).sum(1) / ((own * happened) * (two / zero - mean**2)).sum(1)
            slope = slope + step
    return np.where(np.abs(step) < NEWTON_CLOSE, slope, np.nan) / score.spread


def _weighted_intercept(s: SurvivalRows, weights: Floats) -> Floats:
    def risk(log_hazard: Floats) -> tuple[Floats, Floats, Floats]:
        cumulative = np.exp(log_hazard)
        left = np.exp(-cumulative)
        return 1 - left, cumulative, left

    last = s.absolute_risk()[:, -1]
    observed = _kaplan_meier(s.test.until(s.horizon), s.horizon, weights)
    start = cloglog_intercept(last, observed_risk(s.test, s.horizon).risk)
    return shift_of_draws(cloglog(last), risk, start, observed, weights)


def _kaplan_meier(test: FollowUp, horizon: float, weights: Floats) -> Floats:
    """The risk at the horizon of each draw. One event after the other: for ties the product is the same."""
    order = np.lexsort((~test.event, test.time))  # an event comes before a censoring at the same time
    own = weights[:, order]
    counts = (test.event & (test.time <= horizon))[order]
    at_risk = own[:, ::-1].cumsum(1)[:, ::-1]
    return np.asarray(1 - np.prod(np.where(counts, 1 - own / at_risk, 1.0), axis=1))


SURVIVAL: Mapping[str, Measure[SurvivalRows]] = MappingProxyType(
    {
        "c_index": Measure(lambda s: concordance(s.test, s.log_hazard).index, _weighted_c_index),
        "c_index_ipcw": Measure(_c_index_ipcw, _weighted_ipcw),
        "brier": Measure(_brier, _weighted_brier),
        "integrated_brier": Measure(_integrated_brier, _weighted_integrated_brier),
        "calibration_slope": Measure(
            lambda s: cox_slope(s.test.until(s.horizon), s.log_hazard), _weighted_slope
        ),
        "calibration_intercept": Measure(_calibration_intercept, _weighted_intercept),
    }
)
