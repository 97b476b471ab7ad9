"""Metrics of survival predictions under row weights: only for their standard errors.

Values are those of `survival` where all weights are equal; a test holds the two together. The censoring that
training rows show is taken as known. Pairs of rows are compared all at once, so of many rows a seeded part
stands for all, and the error is scaled by the root of its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from sksurv.nonparametric import CensoringDistributionEstimator

from fedmap.algorithm.seeding import numpy_stream
from fedmap.metrics.calibration import cloglog_intercept, standardised
from fedmap.metrics.follow_up import FollowUp
from fedmap.metrics.inputs import AnyArray, Floats, checked_probabilities, finite_scores
from fedmap.metrics.kaplan_meier import observed_risk
from fedmap.metrics.resampling import Weighted, resampled, standard_errors
from fedmap.metrics.results import MetricResult

MOST_ROWS = 1500
_EDGE32 = float(np.finfo(np.float32).eps)
_STEPS = 20
_CLOSE = 1e-8


def survival_errors(
    log_hazard: AnyArray,
    risk_at_grid: AnyArray | None,
    grid: AnyArray,
    time: AnyArray,
    event: AnyArray,
    train_time: AnyArray,
    train_event: AnyArray,
    results: Sequence[MetricResult],
    seed: int,
) -> dict[str, float]:
    """Standard errors of what `survival_metrics` measured on the same rows."""
    part = _part(log_hazard, risk_at_grid, grid, time, event, train_time, train_event, seed)
    if part is None:
        return {}
    events = int(part.scored.test.event.sum())
    found = standard_errors(results, _TABLE, part.scored, part.scored.test.time.size, events, seed)
    return {name: error * part.narrower for name, error in found.items()}


def survival_draws(
    log_hazard: AnyArray,
    risk_at_grid: AnyArray | None,
    grid: AnyArray,
    time: AnyArray,
    event: AnyArray,
    train_time: AnyArray,
    train_event: AnyArray,
    results: Sequence[MetricResult],
    seed: int,
    draws: int,
) -> dict[str, Floats]:
    """What `survival_metrics` measured, in every draw: spread as of all rows, around the mean of the part."""
    part = _part(log_hazard, risk_at_grid, grid, time, event, train_time, train_event, seed)
    if part is None:
        return {}
    drawn = resampled(results, _TABLE, part.scored, part.scored.test.time.size, seed, draws)
    found: dict[str, Floats] = {}
    for name, values in drawn.items():
        finite = values[np.isfinite(values)]
        middle = float(finite.mean()) if finite.size else 0.0
        found[name] = middle + (values - middle) * part.narrower
    return found


@dataclass(frozen=True)
class _Part:
    """The rows that stand for all, and by how much all are surer."""

    scored: _Scored
    narrower: float


def _part(
    log_hazard: AnyArray,
    risk_at_grid: AnyArray | None,
    grid: AnyArray,
    time: AnyArray,
    event: AnyArray,
    train_time: AnyArray,
    train_event: AnyArray,
    seed: int,
) -> _Part | None:
    """None: no event among them."""
    test = FollowUp.checked(time, event, "test follow-up times")
    train = FollowUp.checked(train_time, train_event, "training follow-up times")
    rows, times = test.time.size, np.asarray(grid, dtype=np.float64)
    score = finite_scores(log_hazard, "log-hazards", (rows,))
    risk = np.zeros((rows, times.size))
    if risk_at_grid is not None:
        risk = checked_probabilities(risk_at_grid, "risks", (rows, times.size))
    chosen = np.arange(rows)
    if rows > MOST_ROWS:
        chosen = np.sort(numpy_stream(seed).permutation(rows)[:MOST_ROWS])
    part = FollowUp(test.time[chosen], test.event[chosen])
    if not part.until(float(times[-1])).event.any():
        return None
    scored = _Scored(score[chosen], risk[chosen], times, part, train)
    return _Part(scored, math.sqrt(chosen.size / rows))


@dataclass(frozen=True)
class _Scored:
    log_hazard: Floats  # (rows,)
    risk: Floats  # (rows, grid)
    grid: Floats
    test: FollowUp
    train: FollowUp

    @property
    def horizon(self) -> float:
        return float(self.grid[-1])


def _c_index(s: _Scored, weights: Floats) -> Floats:
    return _concordance(s.test, s.log_hazard, np.ones(s.test.time.size), weights)


def _c_index_ipcw(s: _Scored, weights: Floats) -> Floats:
    test, train = s.test.until(s.horizon), s.train.until(s.horizon)
    tau = min(s.horizon, float(train.time.max()))
    seen = _uncensored(train, test.time)
    pull = np.where(test.event & (test.time < tau) & (seen > 0), np.square(1 / np.maximum(seen, 1e-12)), 0.0)
    return _concordance(test, s.log_hazard, pull, weights)


def _concordance(follow_up: FollowUp, score: Floats, pull: Floats, weights: Floats) -> Floats:
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


def _brier_at(s: _Scored, place: int, last: float) -> Floats:
    """(rows,) each row's share of the Brier score at one grid time, censoring stopped at `last`."""
    time, test, train = float(s.grid[place]), s.test.until(last), s.train.until(last)
    risk = s.risk[:, place]
    case = (test.time <= time) & test.event
    own = _uncensored(train, test.time)
    there = float(_uncensored(train, np.array([time]))[0])
    cases = np.where(case & (own > 0), np.square(1 - risk) / np.maximum(own, 1e-12), 0.0)
    return cases + np.where(test.time > time, np.square(risk) / max(there, 1e-12), 0.0)


def _brier(s: _Scored, weights: Floats) -> Floats:
    return _mean(_brier_at(s, len(s.grid) - 1, s.horizon), weights)


def _integrated_brier(s: _Scored, weights: Floats) -> Floats:
    covered = [
        place
        for place, time in enumerate(s.grid)
        if time >= s.test.time.min() and s.test.reaches(time) and s.train.reaches(time)
    ]
    if len(covered) < 2:
        return np.full(len(weights), np.nan)
    times = s.grid[covered]
    scores = np.stack([_brier_at(s, place, float(times[-1])) for place in covered], axis=1)
    return _mean(np.trapezoid(scores, times, axis=1) / (times[-1] - times[0]), weights)


def _mean(values: Floats, weights: Floats) -> Floats:
    return np.asarray(weights @ values / weights.sum(1))


def _slope(s: _Scored, weights: Floats) -> Floats:
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
    return np.where(np.abs(step) < _CLOSE, slope, np.nan) / score.spread


def _intercept(s: _Scored, weights: Floats) -> Floats:
    """From the shift of all rows, Newton's method finds that of each draw in a few steps."""
    risk = np.clip(s.risk[:, -1], _EDGE32, 1 - _EDGE32)
    log_hazard, total = np.log(-np.log1p(-risk)), weights.sum(1)
    observed = _kaplan_meier(s.test.until(s.horizon), s.horizon, weights)
    start = cloglog_intercept(risk, observed_risk(s.test, s.horizon).risk)
    shift, step = np.full(len(weights), start), np.full(len(weights), np.inf)
    with np.errstate(all="ignore"):
        for _ in range(_STEPS // 2):
            cumulative = np.exp(log_hazard + shift[:, None])
            left = np.exp(-cumulative)
            excess = observed - (weights * (1 - left)).sum(1) / total
            step = excess / ((weights * cumulative * left).sum(1) / total)
            shift = shift + step
    return np.where(np.abs(step) < _CLOSE, shift, np.nan)


def _kaplan_meier(test: FollowUp, horizon: float, weights: Floats) -> Floats:
    """The risk at the horizon of each draw. One event after the other: for ties the product is the same."""
    order = np.lexsort((~test.event, test.time))  # an event comes before a censoring at the same time
    own = weights[:, order]
    counts = (test.event & (test.time <= horizon))[order]
    at_risk = own[:, ::-1].cumsum(1)[:, ::-1]
    return np.asarray(1 - np.prod(np.where(counts, 1 - own / at_risk, 1.0), axis=1))


_TABLE: Mapping[str, Weighted[_Scored]] = MappingProxyType(
    {
        "c_index": _c_index,
        "c_index_ipcw": _c_index_ipcw,
        "brier": _brier,
        "integrated_brier": _integrated_brier,
        "calibration_slope": _slope,
        "calibration_intercept": _intercept,
    }
)
