"""How well a model predicts: named metrics, each measured or skipped with a reason.

Only the light half is re-exported here (names and result types), so that a study plan can be checked
without loading scikit-learn. What measures is imported by its own name:

    fedmap.metrics.classification   binary and multiclass predictions
    fedmap.metrics.survival         log-hazards and risks over time
    fedmap.metrics.thresholds       the cut of a binary prediction

A metric is a row of METRICS in `names` (label, kinds of outcome, ideal) and a `Measure` in the table of each
kind that has it (BINARY, MULTICLASS, SURVIVAL): its value, and the same under row weights for its error.

In: predictions, outcomes.
Out: metrics with their errors, or why there is none.
May import: algorithm and below.
"""

from fedmap.metrics.names import (
    METRICS,
    higher_is_better,
    metric_label,
    metric_names,
    primary_metric_names,
    shortfall,
)
from fedmap.metrics.results import Metric, MetricResult, SkippedMetric, Threshold

__all__ = [
    "METRICS",
    "Metric",
    "MetricResult",
    "SkippedMetric",
    "Threshold",
    "higher_is_better",
    "metric_label",
    "metric_names",
    "primary_metric_names",
    "shortfall",
]
