"""Which metrics exist, for which kind of task, and what a good value is.

A table and its readers, nothing else: no scikit-learn, no arrays, so that a study plan can be checked
against it at no cost. What the values mean is written where they are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fedmap.errors import PlanError
from fedmap.outcomes import OutcomeKind


@dataclass(frozen=True)
class MetricDescription:
    """One metric of the table."""

    label: str
    kinds: tuple[OutcomeKind, ...]
    ideal: float
    """The value of a perfect model: 1 or 0."""
    two_sided: bool = False
    """True where the value can miss the ideal on either side, so that neither more nor less is better."""
    one_sided: bool = False
    """True where the value has no bound away from the ideal."""

    @property
    def bounded(self) -> bool:
        """Whether every value lies between 0 and 1."""
        return not (self.two_sided or self.one_sided)


METRICS: Mapping[str, MetricDescription] = MappingProxyType(
    {
        "auroc": MetricDescription("AUROC", ("binary", "multiclass"), 1.0),
        "auprc": MetricDescription("AUPRC", ("binary",), 1.0),
        "balanced_accuracy": MetricDescription("Balanced accuracy", ("binary", "multiclass"), 1.0),
        "sensitivity": MetricDescription("Sensitivity", ("binary",), 1.0),
        "specificity": MetricDescription("Specificity", ("binary",), 1.0),
        "accuracy": MetricDescription("Accuracy", ("binary", "multiclass"), 1.0),
        "c_index": MetricDescription("C-index (Harrell)", ("cox",), 1.0),
        "c_index_ipcw": MetricDescription("C-index (Uno, IPCW)", ("cox",), 1.0),
        "brier": MetricDescription("Brier score", ("binary", "cox"), 0.0),
        "integrated_brier": MetricDescription("Integrated Brier score", ("cox",), 0.0),
        "calibration_slope": MetricDescription("Calibration slope", ("binary", "cox"), 1.0, two_sided=True),
        "calibration_intercept": MetricDescription(
            "Calibration intercept", ("binary", "cox"), 0.0, two_sided=True
        ),
        "log_loss": MetricDescription("Log loss", ("binary", "multiclass"), 0.0, one_sided=True),
    }
)


def metric_names(kind: OutcomeKind) -> tuple[str, ...]:
    """All metrics measured for a kind of task, in the order they are reported."""
    return tuple(name for name, metric in METRICS.items() if kind in metric.kinds)


def primary_metric_names(kind: OutcomeKind) -> tuple[str, ...]:
    """Those that can rank models. Calibration cannot: a model with no skill at all can be well calibrated."""
    return tuple(name for name in metric_names(kind) if not METRICS[name].two_sided)


def metric_label(name: str) -> str:
    """The name for people."""
    return _described(name).label


def higher_is_better(name: str) -> bool:
    """Whether more is better; refused for the two calibration figures, which have a target instead."""
    metric = _described(name)
    if metric.two_sided:
        raise PlanError(
            "metrics",
            (f'"{name}" has a target ({metric.ideal:g}): neither more nor less of it is better',),
            hint="rank models by another metric, and compare this one by its distance from the target",
        )
    return metric.ideal == 1.0


def shortfall(name: str, value: float) -> float:
    """Distance from the ideal value: for every metric, less is better."""
    return abs(value - _described(name).ideal)


def chosen_metric_names(kind: OutcomeKind, only: Collection[str] | None) -> tuple[str, ...]:
    """The metrics to measure: all of the kind, or those asked for, in the order of the table."""
    known = metric_names(kind)
    if only is None:
        return known
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise PlanError(
            "metrics",
            tuple(f'"{name}" is no metric of a {kind} task' for name in unknown),
            hint=f"choose among {', '.join(known)}",
        )
    return tuple(name for name in known if name in only)


def _described(name: str) -> MetricDescription:
    metric = METRICS.get(name)
    if metric is None:
        raise PlanError("metrics", (f'unknown metric "{name}"',), hint=f"choose among {', '.join(METRICS)}")
    return metric
