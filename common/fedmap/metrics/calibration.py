"""Calibration of probabilities: the slope by logistic recalibration, the intercept as a shift.

Intercept, for any link: the one number δ that, added to every prediction on the link's scale with the
slope fixed at 1, makes the mean predicted risk equal the observed risk ("calibration in the large"):

    mean_i h(link(p_i) + δ) = observed risk

For binary outcomes (logit) this is the score equation of a logistic model with offset logit(p); for
survival (complementary log-log) δ is the log ratio of cumulative hazards. δ > 0: risks are too low.

Probabilities are kept away from 0 and 1 by float32's resolution, so that one saturated prediction
counts as a very confident one and not as infinite. No calibration curve is drawn here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgWarning
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from fedmap.metrics.inputs import Classes, Floats
from fedmap.metrics.results import NotMeasurableError, row_count

_EDGE = float(np.finfo(np.float32).eps)
_CONSTANT = 1e-9
_WIDEST_SHIFT = 100.0
"""Beyond any shift that clipped predictions (at most 16 from zero on either link) can need."""
NEWTON_CLOSE = 1e-8
_SHIFT_STEPS = 10


def logistic_slope(risk: Floats, target: Classes) -> float:
    """The coefficient of logit(risk) in an unpenalised logistic regression of the outcome."""
    score = standardised(log_odds(risk))
    positive, negative = score.values[target == 1], score.values[target == 0]
    if negative.max() <= positive.min() or positive.max() <= negative.min():
        raise NotMeasurableError("the score separates the classes completely, so no finite slope exists")
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-9, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("error", LinAlgWarning)
        try:
            model.fit(score.values[:, None], target)
        except (ConvergenceWarning, LinAlgWarning):
            raise NotMeasurableError("the recalibration did not converge") from None
    return float(model.coef_[0, 0]) / score.spread


def logit_intercept(risk: Floats, observed: float) -> float:
    """The shift of logit(risk) that makes the mean risk equal the observed share."""
    return _shift(log_odds(risk), expit, observed)


def cloglog_intercept(risk: Floats, observed: float) -> float:
    """The shift of log(-log(1 - risk)), a log cumulative hazard, that makes the mean risk the observed."""

    def inverse(log_hazard: Floats) -> Floats:
        return np.asarray(-np.expm1(-np.exp(log_hazard)))

    return _shift(cloglog(risk), inverse, observed)


@dataclass(frozen=True)
class Standardised:
    """A score with mean 0 and spread 1, so that a Newton fit is well scaled, and the spread it had."""

    values: Floats
    spread: float


def standardised(score: Floats) -> Standardised:
    """The score in its own units of spread; a score that is the same for every row has no slope."""
    if np.ptp(score) < _CONSTANT:
        raise NotMeasurableError(f"the score is the same for all {row_count(score.size)}")
    spread = float(score.std())
    return Standardised((score - score.mean()) / spread, spread)


def log_odds(risk: Floats) -> Floats:
    return logit(_clipped(risk))


def cloglog(risk: Floats) -> Floats:
    """The log cumulative hazard."""
    return np.asarray(np.log(-np.log1p(-_clipped(risk))))


def _clipped(risk: Floats) -> Floats:
    return np.clip(risk, _EDGE, 1.0 - _EDGE)


def shift_of_draws(
    score: Floats,
    risk: Callable[[Floats], tuple[Floats, Floats, Floats]],
    start: float,
    observed: Floats,
    weights: Floats,
) -> Floats:
    """The shift of each draw, by Newton's method from that of all rows; NaN where it does not settle.

    `risk` gives the risk of a score, and two factors of its slope.
    """
    total = weights.sum(1)
    shift, step = np.full(len(weights), start), np.full(len(weights), np.inf)
    with np.errstate(all="ignore"):
        for _ in range(_SHIFT_STEPS):
            level, first, second = risk(score + shift[:, None])
            step = (observed - (weights * level).sum(1) / total) / ((weights * first * second).sum(1) / total)
            shift = shift + step
    return np.where(np.abs(step) < NEWTON_CLOSE, shift, np.nan)


def _shift(score: Floats, inverse: Callable[[Floats], Floats], observed: float) -> float:
    def excess(delta: float) -> float:
        return float(np.mean(inverse(score + delta))) - observed

    return float(brentq(excess, -_WIDEST_SHIFT, _WIDEST_SHIFT, xtol=1e-12))
