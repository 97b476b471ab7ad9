"""What measuring gives back: a finite value, or the reason why there is none.

A metric that cannot be computed is never left out, never NaN and never a default: it is a
`SkippedMetric`. Reasons and notes hold counts, never a value of a patient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

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


class Noted(NamedTuple):
    """A value that needs a word of explanation."""

    value: float
    note: str


class NotMeasurableError(Exception):
    """Raised inside this package where data cannot give a metric; always caught by `Scores`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def row_count(count: int, part: str = "test") -> str:
    """'1 test row', '14 test rows': the one way reasons count."""
    return f"{count} {part} row{'' if count == 1 else 's'}"
