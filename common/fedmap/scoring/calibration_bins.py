"""Predicted against observed risk in fixed bins: what a site may let go of, and the pooled curve.

A bin whose counts point at people (rows, events, or rows without an event) is joined with its neighbours
until none of them does. The joined bin then stands in the bin of the grid that holds its mean predicted risk,
so that the curves of many sites fall on one grid. Reading rows and estimating risks is `evaluation_terms`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedmap.scoring.figures import CalibrationBin
from fedmap.scoring.meta_analysis import wilson

RISK_EDGES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Inner edges, finer where most patients are; a risk on an edge belongs to the bin above it."""
BINS = len(RISK_EDGES) + 1


@dataclass(frozen=True)
class BinTerms:
    """Rows of one site whose predicted risks lie together."""

    bin: int  # of the grid
    rows: int
    predicted: float  # sum of predicted risks
    observed: float  # events, or Kaplan-Meier risk at the horizon times rows
    effective_rows: float  # of full follow-up, that would tell as much


def bin_of(risk: float) -> int:
    """Where a risk, or a mean of risks, stands."""
    return bisect_right(RISK_EDGES, risk)


def bin_range(place: int) -> tuple[float, float]:
    """Least and largest risk of a bin."""
    edges = (0.0, *RISK_EDGES, 1.0)
    return edges[place], edges[place + 1]


def joined_bins(places: Iterable[int], may_leave: Callable[[Sequence[int]], bool]) -> list[tuple[int, ...]]:
    """Runs of the grid's bins that hold rows, each of which may leave; none where not even all together may.

    `may_leave` judges the rows of some bins together.
    """
    runs: list[tuple[int, ...]] = []
    open_run: tuple[int, ...] = ()
    for place in sorted(set(places)):
        open_run = (*open_run, place)
        if may_leave(open_run):
            runs.append(open_run)
            open_run = ()
    while open_run and runs:  # the last rows join the run before them, and that one perhaps its own neighbour
        open_run = (*runs.pop(), *open_run)
        if may_leave(open_run):
            runs.append(open_run)
            open_run = ()
    return runs


def pool_bins(by_site: Mapping[str, Sequence[BinTerms]]) -> tuple[CalibrationBin, ...]:
    """The curve over all sites, rising, with Wilson's interval on the effective rows."""
    terms = [one for site in sorted(by_site) for one in by_site[site]]
    return tuple(
        _pooled([one for one in terms if one.bin == place]) for place in sorted({t.bin for t in terms})
    )


def _pooled(terms: Sequence[BinTerms]) -> CalibrationBin:
    rows = sum(one.rows for one in terms)
    observed = min(max(sum(one.observed for one in terms) / rows, 0.0), 1.0)
    predicted = min(max(sum(one.predicted for one in terms) / rows, 0.0), 1.0)
    interval = wilson(observed, sum(one.effective_rows for one in terms))
    return CalibrationBin(
        predicted=predicted, observed=observed, low=interval.low, high=interval.high, rows=rows
    )
