"""Metrics of binary and multiclass predictions under row weights: only for their standard errors.

Values are those of `classification` where all weights are equal; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.special import expit, logit

from fedmap.metrics.calibration import logit_intercept, standardised
from fedmap.metrics.inputs import (
    AnyArray,
    Bools,
    Classes,
    Floats,
    checked_probabilities,
    class_indices,
    class_probabilities,
)
from fedmap.metrics.resampling import Weighted, resampled, standard_errors
from fedmap.metrics.results import MetricResult

_EDGE32 = float(np.finfo(np.float32).eps)
_EDGE64 = float(np.finfo(np.float64).eps)
_STEPS = 30
_CLOSE = 1e-8


def classification_errors(
    probabilities: AnyArray, target: AnyArray, threshold: float, results: Sequence[MetricResult], seed: int
) -> dict[str, float]:
    """Standard errors of what `classification_metrics` measured on the same rows."""
    scored = _binary(probabilities, target, threshold)
    least = _least_class(scored.target)
    return standard_errors(results, _BINARY, scored, scored.target.size, least, seed)


def classification_draws(
    probabilities: AnyArray,
    target: AnyArray,
    threshold: float,
    results: Sequence[MetricResult],
    seed: int,
    draws: int,
) -> dict[str, Floats]:
    """What `classification_metrics` measured, in every draw."""
    scored = _binary(probabilities, target, threshold)
    return resampled(results, _BINARY, scored, scored.target.size, seed, draws)


def multiclass_errors(
    probabilities: AnyArray, target: AnyArray, results: Sequence[MetricResult], seed: int
) -> dict[str, float]:
    """Standard errors of what `multiclass_metrics` measured on the same rows."""
    scored = _multiclass(probabilities, target)
    least = _least_class(scored.target)
    return standard_errors(results, _MULTICLASS, scored, scored.target.size, least, seed)


def multiclass_draws(
    probabilities: AnyArray, target: AnyArray, results: Sequence[MetricResult], seed: int, draws: int
) -> dict[str, Floats]:
    """What `multiclass_metrics` measured, in every draw."""
    scored = _multiclass(probabilities, target)
    return resampled(results, _MULTICLASS, scored, scored.target.size, seed, draws)


def _least_class(target: Classes) -> int:
    counts = np.bincount(target)
    return int(counts[counts > 0].min()) if target.size else 0


@dataclass(frozen=True)
class _Binary:
    risk: Floats  # (rows,)
    target: Classes
    predicted: Bools


@dataclass(frozen=True)
class _Multiclass:
    risk: Floats  # (rows, classes)
    target: Classes


def _binary(probabilities: AnyArray, target: AnyArray, threshold: float) -> _Binary:
    outcome = class_indices(target, 2)
    risk = checked_probabilities(probabilities, "probabilities", outcome.shape)
    return _Binary(risk, outcome, risk >= threshold)


def _multiclass(probabilities: AnyArray, target: AnyArray) -> _Multiclass:
    risk = class_probabilities(probabilities, len(target))
    return _Multiclass(risk, class_indices(target, risk.shape[1]))


def _mean(values: Floats, weights: Floats) -> Floats:
    """(rows,) under (draws, rows) → (draws,)."""
    return np.asarray(weights @ values / weights.sum(1))


def _share(hit: Bools, among: Bools, weights: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(weights @ (hit & among).astype(float) / (weights @ among.astype(float)))


def _sensitivity(s: _Binary, weights: Floats) -> Floats:
    return _share(s.predicted, s.target == 1, weights)


def _specificity(s: _Binary, weights: Floats) -> Floats:
    return _share(~s.predicted, s.target == 0, weights)


def _balanced(s: _Binary, weights: Floats) -> Floats:
    return (_sensitivity(s, weights) + _specificity(s, weights)) / 2


def _accuracy(s: _Binary, weights: Floats) -> Floats:
    return _mean((s.predicted == (s.target == 1)).astype(float), weights)


def _brier(s: _Binary, weights: Floats) -> Floats:
    return _mean(np.square(s.risk - s.target), weights)


def _log_loss(s: _Binary, weights: Floats) -> Floats:
    own = np.clip(np.where(s.target == 1, s.risk, 1 - s.risk), _EDGE64, 1.0)
    return _mean(-np.log(own), weights)


def _by_score(score: Floats, positive: Bools, weights: Floats) -> tuple[Floats, Floats]:
    """Weights of positive and negative rows by distinct score, falling: (draws, scores) each."""
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=np.inf))
    positives = np.add.reduceat((weights * positive)[:, order], starts, axis=1)
    negatives = np.add.reduceat((weights * ~positive)[:, order], starts, axis=1)
    return positives, negatives


def _area(score: Floats, positive: Bools, weights: Floats) -> Floats:
    """P(a positive row scores higher than a negative one), ties a half."""
    positives, negatives = _by_score(score, positive, weights)
    below = negatives.sum(1, keepdims=True) - negatives.cumsum(1)
    won = (positives * (below + negatives / 2)).sum(1)
    return np.asarray(won / (positives.sum(1) * negatives.sum(1)))


def _auroc(s: _Binary, weights: Floats) -> Floats:
    return _area(s.risk, s.target == 1, weights)


def _auprc(s: _Binary, weights: Floats) -> Floats:
    positives, negatives = _by_score(s.risk, s.target == 1, weights)
    found = positives.cumsum(1)
    precision = found / (found + negatives.cumsum(1))
    return np.asarray((positives * precision).sum(1) / positives.sum(1))


def _slope(s: _Binary, weights: Floats) -> Floats:
    """Newton's method for intercept and slope, all draws at once; a draw that does not settle has none."""
    score = standardised(logit(np.clip(s.risk, _EDGE32, 1 - _EDGE32)))
    x, y = score.values, s.target.astype(float)
    a, b = np.zeros(len(weights)), np.zeros(len(weights))
    step = np.full(len(weights), np.inf)
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            p = expit(a[:, None] + b[:, None] * x)
            rest, curve = weights * (y - p), weights * p * (1 - p)
            g0, g1 = rest.sum(1), rest @ x
            h0, h1, h2 = curve.sum(1), curve @ x, curve @ (x * x)
            fall = h0 * h2 - h1 * h1
            step = (h0 * g1 - h1 * g0) / fall
            a, b = a + (h2 * g0 - h1 * g1) / fall, b + step
    return np.where(np.abs(step) < _CLOSE, b, np.nan) / score.spread


def _intercept(s: _Binary, weights: Floats) -> Floats:
    """From the shift of all rows, Newton's method finds that of each draw in a few steps."""
    score = logit(np.clip(s.risk, _EDGE32, 1 - _EDGE32))
    observed = _mean(s.target.astype(float), weights)
    total = weights.sum(1)
    shift = np.full(len(weights), logit_intercept(s.risk, float(s.target.mean())))
    step = np.full(len(weights), np.inf)
    with np.errstate(all="ignore"):
        for _ in range(_STEPS // 3):
            p = expit(score + shift[:, None])
            step = (observed - (weights * p).sum(1) / total) / ((weights * p * (1 - p)).sum(1) / total)
            shift = shift + step
    return np.where(np.abs(step) < _CLOSE, shift, np.nan)


def _macro_area(s: _Multiclass, weights: Floats) -> Floats:
    classes = range(s.risk.shape[1])
    return np.asarray(np.mean([_area(s.risk[:, k], s.target == k, weights) for k in classes], axis=0))


def _macro_recall(s: _Multiclass, weights: Floats) -> Floats:
    chosen = s.risk.argmax(1)
    recalls = [_share(chosen == k, s.target == k, weights) for k in np.unique(s.target)]
    return np.asarray(np.mean(recalls, axis=0))


def _chosen_right(s: _Multiclass, weights: Floats) -> Floats:
    return _mean((s.risk.argmax(1) == s.target).astype(float), weights)


def _multiclass_log_loss(s: _Multiclass, weights: Floats) -> Floats:
    own = s.risk[np.arange(len(s.target)), s.target]
    return _mean(-np.log(np.clip(own, _EDGE64, 1.0)), weights)


_BINARY: Mapping[str, Weighted[_Binary]] = MappingProxyType(
    {
        "auroc": _auroc,
        "auprc": _auprc,
        "balanced_accuracy": _balanced,
        "sensitivity": _sensitivity,
        "specificity": _specificity,
        "accuracy": _accuracy,
        "brier": _brier,
        "calibration_slope": _slope,
        "calibration_intercept": _intercept,
        "log_loss": _log_loss,
    }
)
_MULTICLASS: Mapping[str, Weighted[_Multiclass]] = MappingProxyType(
    {
        "auroc": _macro_area,
        "balanced_accuracy": _macro_recall,
        "accuracy": _chosen_right,
        "log_loss": _multiclass_log_loss,
    }
)
