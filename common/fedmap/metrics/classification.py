"""Metrics of binary and multiclass predictions, from scikit-learn.

A row counts as predicted positive when its probability reaches the threshold (>=), and as the class of
highest probability when there are several. Where an outcome class is absent, each metric that needs it is
skipped with the reason; the others are still measured. Choosing the threshold is not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from sklearn import metrics as sk

from fedmap.errors import TrainingError
from fedmap.metrics.calibration import logistic_slope, logit_intercept
from fedmap.metrics.inputs import (
    AnyArray,
    Classes,
    Floats,
    checked_probabilities,
    class_indices,
    class_probabilities,
)
from fedmap.metrics.names import chosen_metric_names
from fedmap.metrics.results import MetricResult, Noted, NotMeasurableError, SkippedMetric, measure, row_count


def classification_metrics(
    probabilities: AnyArray, target: AnyArray, threshold: float, *, only: Collection[str] | None = None
) -> tuple[MetricResult, ...]:
    """Measure a binary prediction.

    `probabilities` (rows,) are those of the positive class, `target` (rows,) is 0 or 1; `only` limits the
    work to some metric names.
    """
    names = chosen_metric_names("binary", only)
    outcome = class_indices(target, 2)
    scored = _Binary(
        checked_probabilities(probabilities, "probabilities", outcome.shape), outcome, _checked(threshold)
    )
    if not outcome.size:
        return _nothing_to_score(names)
    return measure(names, BINARY_METRICS, scored)


def multiclass_metrics(
    probabilities: AnyArray, target: AnyArray, *, only: Collection[str] | None = None
) -> tuple[MetricResult, ...]:
    """Measure a multiclass prediction.

    `probabilities` (rows, classes) sum to one per row, `target` (rows,) is a class index; `only` limits the
    work to some metric names.
    """
    names = chosen_metric_names("multiclass", only)
    risk = class_probabilities(probabilities, len(target))
    outcome = class_indices(target, risk.shape[1])
    scored = _Multiclass(risk, outcome)
    if not outcome.size:
        return _nothing_to_score(names)
    return measure(names, MULTICLASS_METRICS, scored)


@dataclass(frozen=True)
class _Binary:
    risk: Floats  # (rows,)
    target: Classes  # (rows,)
    threshold: float

    @property
    def predicted(self) -> Classes:
        return (self.risk >= self.threshold).astype(np.int64)

    def need_both_classes(self) -> None:
        if np.unique(self.target).size < 2:
            raise NotMeasurableError(f"one class only among {row_count(self.target.size)}")


@dataclass(frozen=True)
class _Multiclass:
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


def _auroc(scored: _Binary) -> float:
    scored.need_both_classes()
    return float(sk.roc_auc_score(scored.target, scored.risk))


def _auprc(scored: _Binary) -> float:
    scored.need_both_classes()
    return float(sk.average_precision_score(scored.target, scored.risk))


def _balanced_accuracy(scored: _Binary) -> float:
    scored.need_both_classes()
    return float(sk.balanced_accuracy_score(scored.target, scored.predicted))


def _sensitivity(scored: _Binary) -> float:
    if not scored.target.any():
        raise NotMeasurableError(f"no positive among {row_count(scored.target.size)}")
    return float(sk.recall_score(scored.target, scored.predicted, pos_label=1))


def _specificity(scored: _Binary) -> float:
    if scored.target.all():
        raise NotMeasurableError(f"no negative among {row_count(scored.target.size)}")
    return float(sk.recall_score(scored.target, scored.predicted, pos_label=0))


def _accuracy(scored: _Binary | _Multiclass) -> float:
    return float(sk.accuracy_score(scored.target, scored.predicted))


def _brier(scored: _Binary) -> float:
    return float(sk.brier_score_loss(scored.target, scored.risk, pos_label=1))


def _calibration_slope(scored: _Binary) -> float:
    scored.need_both_classes()
    return logistic_slope(scored.risk, scored.target)


def _calibration_intercept(scored: _Binary) -> float:
    scored.need_both_classes()
    return logit_intercept(scored.risk, float(scored.target.mean()))


def _log_loss(scored: _Binary) -> float:
    return float(sk.log_loss(scored.target, scored.risk, labels=[0, 1]))


def _macro_auroc(scored: _Multiclass) -> float:
    """One class against the rest, averaged over classes with equal weight."""
    if scored.absent:
        raise NotMeasurableError(scored.absent)
    one_hot = np.eye(scored.risk.shape[1], dtype=np.int64)[scored.target]
    return float(sk.roc_auc_score(one_hot, scored.risk, average="macro"))


def _macro_recall(scored: _Multiclass) -> float | Noted:
    """Balanced accuracy: the mean recall of the classes present."""
    present = np.unique(scored.target)
    if present.size < 2:
        raise NotMeasurableError(f"one class only among {row_count(scored.target.size)}")
    recall = float(sk.recall_score(scored.target, scored.predicted, labels=present, average="macro"))
    return Noted(recall, scored.absent) if scored.absent else recall


def _multiclass_log_loss(scored: _Multiclass) -> float:
    return float(sk.log_loss(scored.target, scored.risk, labels=list(range(scored.risk.shape[1]))))


BINARY_METRICS: Mapping[str, Callable[[_Binary], float | Noted]] = MappingProxyType(
    {
        "auroc": _auroc,
        "auprc": _auprc,
        "balanced_accuracy": _balanced_accuracy,
        "sensitivity": _sensitivity,
        "specificity": _specificity,
        "accuracy": _accuracy,
        "brier": _brier,
        "calibration_slope": _calibration_slope,
        "calibration_intercept": _calibration_intercept,
        "log_loss": _log_loss,
    }
)

MULTICLASS_METRICS: Mapping[str, Callable[[_Multiclass], float | Noted]] = MappingProxyType(
    {
        "auroc": _macro_auroc,
        "balanced_accuracy": _macro_recall,
        "accuracy": _accuracy,
        "log_loss": _multiclass_log_loss,
    }
)


def _nothing_to_score(names: tuple[str, ...]) -> tuple[MetricResult, ...]:
    return tuple(SkippedMetric(name, "no test rows") for name in names)


def _checked(threshold: float) -> float:
    if not 0.0 <= threshold <= 1.0:
        raise TrainingError(
            "the decision threshold is not a probability",
            hint="choose it with the plan's threshold rule, or fix it between 0 and 1",
        )
    return threshold
