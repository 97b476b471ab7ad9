"""How sure a metric is: its standard error by resampling the test rows, two hundred times, seeded.

Rubin's Bayesian bootstrap: each draw weighs the rows anew with exponential weights instead of drawing some
rows twice and others not at all. No draw loses the only events of a small site, and tied rows are not made.
What a metric is under such weights is written beside this module, for classes and for follow-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from fedmap.algorithm.seeding import numpy_stream
from fedmap.metrics.inputs import Floats
from fedmap.metrics.names import METRICS
from fedmap.metrics.results import Metric, MetricResult, NotMeasurableError

DRAWS = 200
_CELLS_AT_ONCE = 2_000_000  # weights in memory
_NO_SPREAD = 1e-12
_UNBOUNDED = ("log_loss",)

Scored = TypeVar("Scored")
Weighted = Callable[[Scored, Floats], Floats]
"""(scored rows, weights (draws, rows)) → the metric of each draw, not finite where it has none."""


def standard_errors(
    results: Sequence[MetricResult],
    table: Mapping[str, Weighted[Scored]],
    scored: Scored,
    rows: int,
    least_cell: int,
    seed: int,
) -> dict[str, float]:
    """Of each metric that was measured. `least_cell` is the smallest count of rows behind any of them.

    A metric that is the same in every draw stands at its bound: a test part in which each case was found does
    not prove that each case will be. It then gets the error of Agresti and Coull at that bound.
    """
    drawn = resampled(results, table, scored, rows, seed)
    errors: dict[str, float] = {}
    for name, draws in drawn.items():
        values = draws[np.isfinite(draws)]
        if values.size < DRAWS // 2:
            continue
        error = float(values.std(ddof=1))
        if error <= _NO_SPREAD and not METRICS[name].two_sided and name not in _UNBOUNDED:
            error = _at_the_bound(least_cell)
        errors[name] = error
    return errors


def resampled(
    results: Sequence[MetricResult],
    table: Mapping[str, Weighted[Scored]],
    scored: Scored,
    rows: int,
    seed: int,
    draws: int = DRAWS,
) -> dict[str, Floats]:
    """Each measured metric in every draw, not finite where a draw has none.

    The same seed weighs the same rows alike, so that two models can be compared draw by draw.
    """
    names = [result.name for result in results if isinstance(result, Metric) and result.name in table]
    drawn: dict[str, list[Floats]] = {name: [] for name in names}
    for weights in _weights(rows, seed, draws):
        for name in names:
            drawn[name].append(_drawn(table[name], scored, weights))
    return {name: np.concatenate(values) for name, values in drawn.items()}


def _drawn(metric: Weighted[Scored], scored: Scored, weights: Floats) -> Floats:
    try:
        return metric(scored, weights)
    except NotMeasurableError:  # of the part of the rows that stands for all
        return np.full(len(weights), np.nan)


def _weights(rows: int, seed: int, draws: int) -> Iterator[Floats]:
    """All draws, some at a time; the same whatever the number at a time."""
    stream = numpy_stream(seed)
    at_once = max(1, min(draws, _CELLS_AT_ONCE // max(rows, 1)))
    for first in range(0, draws, at_once):
        yield stream.standard_exponential((min(at_once, draws - first), rows))


def _at_the_bound(rows: int) -> float:
    share, effective = 2 / (rows + 4), rows + 4
    return math.sqrt(share * (1 - share) / effective)
