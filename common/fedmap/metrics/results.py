"""What measuring gives back: a finite value, or the reason why there is none.

A metric that cannot be computed is never left out, never NaN and never a default: it is a
`SkippedMetric`. Reasons and notes hold counts, never a value of a patient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fedmap.errors import TrainingError


@dataclass(frozen=True)
class Metric:
    """A measured metric."""

    name: str
    value: float
    note: str | None = None
    """How the measurement departs from the metric's definition, e.g. fewer grid times."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise TrainingError(
                f"the metric {self.name} is not a finite number",
                hint="report this as a defect: metrics without a value must be skipped with a reason",
            )


@dataclass(frozen=True)
class SkippedMetric:
    """A metric these data cannot give."""

    name: str
    reason: str


@dataclass(frozen=True)
class Threshold:
    """A probability at or above `value` counts as positive; `note` says why a rule was not applied."""

    value: float
    note: str | None = None


MetricResult = Metric | SkippedMetric
Scored = TypeVar("Scored")


class Noted(NamedTuple):
    """A value that needs a word of explanation."""

    value: float
    note: str


class NotMeasurableError(Exception):
    """Raised inside this package where data cannot give a metric; always caught by `measure`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def measure(
    names: Sequence[str], table: Mapping[str, Callable[[Scored], float | Noted]], scored: Scored
) -> tuple[MetricResult, ...]:
    """Run the table's computation of each named metric and record what came of it."""
    return tuple(_measured(name, table[name], scored) for name in names)


def _measured(name: str, compute: Callable[[Scored], float | Noted], scored: Scored) -> MetricResult:
    try:
        result = compute(scored)
    except NotMeasurableError as skipped:
        return SkippedMetric(name, skipped.reason)
    if isinstance(result, Noted):
        return Metric(name, result.value, result.note)
    return Metric(name, result)


def row_count(count: int, part: str = "test") -> str:
    """'1 test row', '14 test rows': the one way reasons count."""
    return f"{count} {part} row{'' if count == 1 else 's'}"
