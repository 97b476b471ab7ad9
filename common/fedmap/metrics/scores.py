"""How metrics are taken of predictions, and how sure they are: one `Measure` for a metric's value and error.

Errors and draws are Rubin's Bayesian bootstrap, seeded: each draw weighs the test rows anew with exponential
weights instead of drawing some twice and others not at all. No draw loses the only events of a small site,
and tied rows are not made. What the metrics of a kind of outcome are is beside this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from fedmap.algorithm.seeding import numpy_stream
from fedmap.metrics.inputs import Floats
from fedmap.metrics.names import METRICS, chosen_metric_names
from fedmap.metrics.results import Metric, MetricResult, Noted, NotMeasurableError, SkippedMetric
from fedmap.outcomes import OutcomeKind

DRAWS = 200
_CELLS_AT_ONCE = 2_000_000  # weights in memory
_NO_SPREAD = 1e-12

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class Measure(Generic[Rows]):
    """One metric of one kind of outcome; `value` raises NotMeasurableError where the rows cannot give it."""

    value: Callable[[Rows], float | Noted]
    weighted: Callable[[Rows, Floats], Floats]
    """(rows, weights (draws, rows)) → the metric of each draw, not finite where it has none."""


@dataclass(frozen=True)
class Part(Generic[Rows]):
    """The rows that are weighed anew: all, or some that stand for all."""

    rows: Rows
    count: int
    least_cell: int  # the smallest count of rows behind any metric
    narrower: float | None = None  # by how much all rows are surer than these; None: these are all


@dataclass(frozen=True)
class Scores(Generic[Rows]):
    """Checked predictions beside their outcomes."""

    kind: OutcomeKind
    measures: Mapping[str, Measure[Rows]]
    rows: Rows
    count: int
    part: Callable[[int], Part[Rows] | None]
    """By seed; None where no metric has an error."""

    def measure(self, only: Collection[str] | None = None) -> tuple[MetricResult, ...]:
        """Every metric of the kind, or some, each measured or skipped with the reason."""
        return tuple(self._measured(name) for name in chosen_metric_names(self.kind, only))

    def _measured(self, name: str) -> MetricResult:
        if not self.count:
            return SkippedMetric(name, "no test rows")
        try:
            found = self.measures[name].value(self.rows)
        except NotMeasurableError as skipped:
            return SkippedMetric(name, skipped.reason)
        return Metric(name, *found) if isinstance(found, Noted) else Metric(name, float(found))

    def errors(self, results: Sequence[MetricResult], seed: int) -> dict[str, float]:
        """The standard error of each metric that was measured.

        A metric that is the same in every draw stands at its bound: a test part in which each case was found
        does not prove that each case will be. It then gets the error of Agresti and Coull at that bound.
        """
        part = self.part(seed)
        errors: dict[str, float] = {}
        for name, draws in ({} if part is None else self._drawn(part, results, seed, DRAWS)).items():
            assert part is not None
            values = draws[np.isfinite(draws)]
            if values.size < DRAWS // 2:
                continue
            error = float(values.std(ddof=1))
            if error <= _NO_SPREAD and METRICS[name].bounded:
                error = _at_the_bound(part.least_cell)
            errors[name] = error * (1.0 if part.narrower is None else part.narrower)
        return errors

    def draws(self, results: Sequence[MetricResult], seed: int, draws: int) -> dict[str, Floats]:
        """Each measured metric in every draw, not finite where a draw has none.

        The same seed weighs the same rows alike, so that two models can be compared draw by draw. Of a part
        that stands for all the draws have the spread of all rows, around the mean of the part.
        """
        part = self.part(seed)
        if part is None:
            return {}
        drawn = self._drawn(part, results, seed, draws)
        if part.narrower is None:
            return drawn
        for name, values in drawn.items():
            finite = values[np.isfinite(values)]
            middle = float(finite.mean()) if finite.size else 0.0
            drawn[name] = middle + (values - middle) * part.narrower
        return drawn

    def _drawn(
        self, part: Part[Rows], results: Sequence[MetricResult], seed: int, draws: int
    ) -> dict[str, Floats]:
        drawn: dict[str, list[Floats]] = {one.name: [] for one in results if isinstance(one, Metric)}
        for weights in _weights(part.count, seed, draws):
            for name, values in drawn.items():
                try:
                    values.append(self.measures[name].weighted(part.rows, weights))
                except NotMeasurableError:  # of the part of the rows that stands for all
                    values.append(np.full(len(weights), np.nan))
        return {name: np.concatenate(values) for name, values in drawn.items()}


def mean(values: Floats, weights: Floats) -> Floats:
    """(rows,) under (draws, rows) → (draws,)."""
    return np.asarray(weights @ values / weights.sum(1))


def _weights(rows: int, seed: int, draws: int) -> Iterator[Floats]:
    """All draws, some at a time; the same whatever the number at a time."""
    stream = numpy_stream(seed)
    at_once = max(1, min(draws, _CELLS_AT_ONCE // max(rows, 1)))
    for first in range(0, draws, at_once):
        yield stream.standard_exponential((min(at_once, draws - first), rows))


def _at_the_bound(rows: int) -> float:
    share, effective = 2 / (rows + 4), rows + 4
    return math.sqrt(share * (1 - share) / effective)
