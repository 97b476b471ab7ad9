"""Metrics of binary and multiclass predictions, from scikit-learn; and under row weights, for their errors.

A row counts as predicted positive when its probability reaches the threshold (>=), and as the class of
highest probability when there are several. Where an outcome class is absent, each metric that needs it is
skipped with the reason; the others are still measured. With equal weights a weighted metric is its value: a
test holds the two together. Choosing the threshold is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.special import expit
from sklearn import metrics as sk

from fedmap.errors import TrainingError
from fedmap.metrics.calibration import (
    NEWTON_CLOSE,
    log_odds,
    logistic_slope,
    logit_intercept,
    shift_of_draws,
    standardised,
)
from fedmap.metrics.inputs import (
    AnyArray,
    Bools,
    Classes,
    Floats,
    checked_probabilities,
    class_indices,
    class_probabilities,
)
from fedmap.metrics.results import Noted, NotMeasurableError, row_count
from fedmap.metrics.scores import Measure, Part, Scores, mean

_EDGE = float(np.finfo(np.float64).eps)
_STEPS = 30


def binary_scores(probabilities: AnyArray, target: AnyArray, threshold: float) -> Scores[BinaryRows]:
    """`probabilities` (rows,) are those of the positive class, `target` (rows,) is 0 or 1."""
    outcome = class_indices(target, 2)
    risk = checked_probabilities(probabilities, "probabilities", outcome.shape)
    if not 0.0 <= threshold <= 1.0:
        raise TrainingError(
            "the decision threshold is not a probability",
            hint="choose it with the plan's threshold rule, or fix it between 0 and 1",
        )
    rows = BinaryRows(risk, outcome, threshold)
    whole = Part(rows, outcome.size, _least_class(outcome))
    return Scores("binary", BINARY, rows, outcome.size, lambda _: whole)


def multiclass_scores(probabilities: AnyArray, target: AnyArray) -> Scores[MulticlassRows]:
    """`probabilities` (rows, classes) sum to one per row, `target` (rows,) is a class index."""
    risk = class_probabilities(probabilities, len(target))
    outcome = class_indices(target, risk.shape[1])
    rows = MulticlassRows(risk, outcome)
    whole = Part(rows, outcome.size, _least_class(outcome))
    return Scores("multiclass", MULTICLASS, rows, outcome.size, lambda _: whole)


def _least_class(target: Classes) -> int:
    counts = np.bincount(target)
    return int(counts[counts > 0].min()) if target.size else 0


def _need_two_classes(target: Classes) -> None:
    if np.unique(target).size < 2:
        raise NotMeasurableError(f"one class only among {row_count(target.size)}")


@dataclass(frozen=True)
class BinaryRows:
    risk: Floats  # (rows,)
    target: Classes  # (rows,)
    threshold: float

    @property
    def predicted(self) -> Bools:
        return np.asarray(self.risk >= self.threshold)

    @property
    def positive(self) -> Bools:
        return np.asarray(self.target == 1)

    @property
    def of_both_classes(self) -> BinaryRows:
        _need_two_classes(self.target)
        return self

    def recall(self, label: int) -> float:
        if not (self.target == label).any():
            word = "positive" if label else "negative"
            raise NotMeasurableError(f"no {word} among {row_count(self.target.size)}")
        return float(sk.recall_score(self.target, self.predicted.astype(np.int64), pos_label=label))


@dataclass(frozen=True)
class MulticlassRows:
    risk: Floats  # (rows, classes)
    target: Classes  # (rows,)

    @property
    def predicted(self) -> Classes:
        return np.asarray(self.risk.argmax(axis=1), dtype=np.int64)

    @property
    def absent(self) -> str | None:
        """In words, how many classes no row has."""
        classes = self.risk.shape[1]
        missing = classes - np.unique(self.target).size
        rows = row_count(self.target.size)
        return f"{missing} of {classes} classes absent among {rows}" if missing else None


def _share(hit: Bools, among: Bools, weights: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(weights @ (hit & among).astype(float) / (weights @ among.astype(float)))


def _right(s: BinaryRows | MulticlassRows, weights: Floats) -> Floats:
    return mean((s.predicted == s.target).astype(float), weights)


def _mean_log_loss(own: Floats, weights: Floats) -> Floats:
    """Of the probabilities that rows gave to their own class."""
    return mean(-np.log(np.clip(own, _EDGE, 1.0)), weights)


def _sensitivity(s: BinaryRows, weights: Floats) -> Floats:
    return _share(s.predicted, s.positive, weights)


def _specificity(s: BinaryRows, weights: Floats) -> Floats:
    return _share(~s.predicted, ~s.positive, weights)


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


def _precision(s: BinaryRows, weights: Floats) -> Floats:
    positives, negatives = _by_score(s.risk, s.positive, weights)
    found = positives.cumsum(1)
    precision = found / (found + negatives.cumsum(1))
    return np.asarray((positives * precision).sum(1) / positives.sum(1))


def _slope(s: BinaryRows, weights: Floats) -> Floats:
    """Newton's method for intercept and slope, all draws at once; a draw that does not settle has none."""
    score = standardised(log_odds(s.risk))
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
    return np.where(np.abs(step) < NEWTON_CLOSE, b, np.nan) / score.spread


def _intercept(s: BinaryRows, weights: Floats) -> Floats:
    def risk(score: Floats) -> tuple[Floats, Floats, Floats]:
        p = expit(score)
        return p, p, 1 - p

    start = logit_intercept(s.risk, float(s.target.mean()))
    return shift_of_draws(log_odds(s.risk), risk, start, mean(s.target.astype(float), weights), weights)


def _macro_auroc(s: MulticlassRows) -> float:
    """One class against the rest, averaged over classes with equal weight."""
    if s.absent:
        raise NotMeasurableError(s.absent)
    one_hot = np.eye(s.risk.shape[1], dtype=np.int64)[s.target]
    return float(sk.roc_auc_score(one_hot, s.risk, average="macro"))


def _macro_area(s: MulticlassRows, weights: Floats) -> Floats:
    classes = range(s.risk.shape[1])
    return np.asarray(np.mean([_area(s.risk[:, k], s.target == k, weights) for k in classes], axis=0))


def _macro_recall(s: MulticlassRows) -> float | Noted:
    """Balanced accuracy: the mean recall of the classes present."""
    _need_two_classes(s.target)
    recall = float(sk.recall_score(s.target, s.predicted, labels=np.unique(s.target), average="macro"))
    return Noted(recall, s.absent) if s.absent else recall


def _weighted_macro_recall(s: MulticlassRows, weights: Floats) -> Floats:
    recalls = [_share(s.predicted == k, s.target == k, weights) for k in np.unique(s.target)]
    return np.asarray(np.mean(recalls, axis=0))


BINARY: Mapping[str, Measure[BinaryRows]] = MappingProxyType(
    {
        "auroc": Measure(
            lambda s: sk.roc_auc_score(s.of_both_classes.target, s.risk),
            lambda s, weights: _area(s.risk, s.positive, weights),
        ),
        "auprc": Measure(lambda s: sk.average_precision_score(s.of_both_classes.target, s.risk), _precision),
        "balanced_accuracy": Measure(
            lambda s: sk.balanced_accuracy_score(s.of_both_classes.target, s.predicted.astype(np.int64)),
            lambda s, weights: (_sensitivity(s, weights) + _specificity(s, weights)) / 2,
        ),
        "sensitivity": Measure(lambda s: s.recall(1), _sensitivity),
        "specificity": Measure(lambda s: s.recall(0), _specificity),
        "accuracy": Measure(lambda s: sk.accuracy_score(s.target, s.predicted.astype(np.int64)), _right),
        "brier": Measure(
            lambda s: sk.brier_score_loss(s.target, s.risk, pos_label=1),
            lambda s, weights: mean(np.square(s.risk - s.target), weights),
        ),
        "calibration_slope": Measure(lambda s: logistic_slope(s.of_both_classes.risk, s.target), _slope),
        "calibration_intercept": Measure(
            lambda s: logit_intercept(s.of_both_classes.risk, float(s.target.mean())), _intercept
        ),
        "log_loss": Measure(
            lambda s: sk.log_loss(s.target, s.risk, labels=[0, 1]),
            lambda s, weights: _mean_log_loss(np.where(s.positive, s.risk, 1 - s.risk), weights),
        ),
    }
)
MULTICLASS: Mapping[str, Measure[MulticlassRows]] = MappingProxyType(
    {
        "auroc": Measure(_macro_auroc, _macro_area),
        "balanced_accuracy": Measure(_macro_recall, _weighted_macro_recall),
        "accuracy": Measure(lambda s: sk.accuracy_score(s.target, s.predicted), _right),
        "log_loss": Measure(
            lambda s: sk.log_loss(s.target, s.risk, labels=list(range(s.risk.shape[1]))),
            lambda s, weights: _mean_log_loss(s.risk[np.arange(len(s.target)), s.target], weights),
        ),
    }
)
