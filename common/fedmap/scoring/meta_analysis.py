"""One figure from many sites: random-effects meta-analysis, and shares with Wilson's interval.

Sites differ, so a figure is the mean of a distribution of sites (DerSimonian and Laird), not one truth that
all of them measure. The interval is Hartung and Knapp's, with Student's t, and never narrower than the plain
one (Röver, Knapp and Friede 2015), because sites are few. Metrics between 0 and 1 are pooled as log odds. No
median is taken: it has no weights, and hides that a site of thirty rows says little. No rows are seen here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedmap.errors import TrainingError
from fedmap.metrics.names import METRICS
from fedmap.scoring.figures import Estimate

FEWEST = 3
"""Sites below which there is no interval: two say next to nothing of how sites differ."""
_LEVEL = 0.95
_NORMAL = 1.959963984540054
_LEAST_ERROR = 1e-6  # a standard error of 0 would take all the weight
_FARTHEST = 0.25  # from a bound that a value is moved


@dataclass(frozen=True)
class Interval:
    """From low to high."""

    low: float
    high: float


def pool_estimates(
    metric: str, values: Sequence[float], standard_errors: Sequence[float | None], elsewhere: bool = False
) -> Estimate:
    """A metric over sites: values and standard errors in the metric's own units, one of each per site.

    Where some sites have a standard error, the others are left out and counted in the note. Where none has,
    all count the same and there is no interval. `elsewhere`: the note says what another site can expect.
    """
    if not values:
        raise TrainingError("no site measured " + metric, hint="leave the figure out, and say why")
    known = [(v, e) for v, e in zip(values, standard_errors, strict=True) if e is not None]
    if not known:
        note = "plain mean over sites; no interval: the sites sent no standard errors"
        return Estimate(metric=metric, value=math.fsum(values) / len(values), sites=len(values), note=note)
    left_out = len(values) - len(known)
    notes = [f"{left_out} site(s) without a standard error left out"] if left_out else []
    bounded = METRICS[metric].bounded
    fit = _random_effects([_log_odds(v, e) if bounded else _as_it_is(v, e) for v, e in known])

    def at(errors: float) -> float:
        """The mean and so many errors more, in the metric's own units."""
        place = fit.mean + errors
        return 1 / (1 + math.exp(-place)) if bounded else place

    if len(known) < FEWEST:
        words = "; ".join([f"no interval: fewer than {FEWEST} sites", *notes])
        return Estimate(metric=metric, value=at(0.0), sites=len(known), note=words)
    width = student(len(known) - 1)
    if elsewhere:
        beyond = width * math.hypot(math.sqrt(fit.between), fit.error)
        notes.insert(0, f"at another such site {at(-beyond):.3g} to {at(beyond):.3g} is to be expected")
    return Estimate(
        metric=metric,
        value=at(0.0),
        low=at(-width * fit.error),
        high=at(width * fit.error),
        sites=len(known),
        note="; ".join(notes),
    )


def wilson(share: float, rows: float) -> Interval:
    """Wilson's 95 % interval of a share of so many rows, which need not be a whole number."""
    if rows <= 0:
        return Interval(0.0, 1.0)
    z2 = _NORMAL**2 / rows
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * max(share * (1 - share), 0.0) + z2**2 / 4) / (1 + z2)
    return Interval(max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def student(degrees: int) -> float:
    """How many standard errors hold 95 % of Student's t; exact for whole degrees of freedom."""
    low, high = 0.0, 16.0  # 12.7 is the most, of one degree
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < _LEVEL else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """P(|T| ≤ t): the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, square, odd = math.sin(angle), math.cos(angle) ** 2, degrees % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for step in range(1, degrees // 2 + 1):
        total += term
        term *= square * (2 * step / (2 * step + 1) if odd else (2 * step - 1) / (2 * step))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@dataclass(frozen=True)
class _Point:
    """One site on the scale of pooling."""

    value: float
    variance: float


@dataclass(frozen=True)
class _Fit:
    mean: float
    error: float  # Hartung and Knapp's
    between: float  # τ²


def _as_it_is(value: float, error: float) -> _Point:
    return _Point(value, max(error, _LEAST_ERROR) ** 2)


def _log_odds(value: float, error: float) -> _Point:
    """By the delta method. A value nearer to 0 or 1 than its own error is moved to that distance: log odds
    beyond are not measured, and at the bound itself there are none."""
    least = max(error, _LEAST_ERROR)
    edge = min(least, _FARTHEST)
    share = min(max(value, edge), 1 - edge)
    return _Point(math.log(share / (1 - share)), (least / (share * (1 - share))) ** 2)


def _random_effects(points: Sequence[_Point]) -> _Fit:
    degrees = len(points) - 1
    weights = [1 / point.variance for point in points]
    total = math.fsum(weights)
    excess = _spread(points, weights, _mean(points, weights))
    scaling = total - math.fsum(w * w for w in weights) / total
    between = max(0.0, (excess - degrees) / scaling) if degrees and scaling > 0 else 0.0
    weights = [1 / (point.variance + between) for point in points]
    mean = _mean(points, weights)
    factor = max(1.0, _spread(points, weights, mean) / degrees) if degrees else 1.0
    return _Fit(mean, math.sqrt(factor / math.fsum(weights)), between)


def _mean(points: Sequence[_Point], weights: Sequence[float]) -> float:
    return math.fsum(w * p.value for w, p in zip(weights, points, strict=True)) / math.fsum(weights)


def _spread(points: Sequence[_Point], weights: Sequence[float], around: float) -> float:
    return math.fsum(w * (p.value - around) ** 2 for w, p in zip(weights, points, strict=True))
