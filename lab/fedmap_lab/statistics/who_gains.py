"""Do sites that do badly alone gain most, and which groups of sites are left behind?

The gain is (federated − individual), so it holds the individual value with a minus sign: chance alone makes
the two correlate negatively. Oldham's correlation, of the gain with the mean of both values, is free of that
to first order and stands beside Spearman's (Oldham, Journal of Chronic Diseases 15, 1962).

Groups of fewer sites than the floor are not shown: their median would be nearly one site's value. The spread
is over the groups that are shown, before (alone) and after (a method) over the same sites.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import linregress, spearmanr, t

from fedmap.metrics import METRICS
from fedmap_lab.statistics.paired import FEWEST_SITES, gain, gains
from fedmap_lab.wording import counted


@dataclass(frozen=True)
class LinearFit:
    """gain = intercept + slope × individual value, and its 95 % confidence band on a grid."""

    slope: float
    intercept: float
    grid: tuple[float, ...]
    line: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class GainAgainstAlone:
    """One point a site, and how the points lie."""

    metric: str
    method: str
    sites: tuple[str, ...]
    alone: tuple[float, ...]
    gain: tuple[float, ...]
    spearman: float | None = None
    spearman_p: float | None = None
    oldham: float | None = None  # Spearman's, of the gain with the mean of both values
    oldham_p: float | None = None
    fit: LinearFit | None = None
    note: str = ""


def gain_against_alone(
    metric: str, method: str, values: Mapping[str, float], alone: Mapping[str, float]
) -> GainAgainstAlone:
    """Over the sites that have both values."""
    sites, differences = gains(metric, values, alone)
    x = np.array([alone[site] for site in sites])
    points = (metric, method, sites, tuple(x.tolist()), tuple(differences.tolist()))
    if len(sites) < FEWEST_SITES:
        return GainAgainstAlone(*points, note=f"{counted(len(sites))}: too few for a correlation")
    if np.ptp(x) == 0 or np.ptp(differences) == 0:
        return GainAgainstAlone(*points, note="all sites have the same value: nothing to correlate")
    towards_better = 1.0 if METRICS[metric].ideal == 1.0 else -1.0
    middle = x + towards_better * differences / 2
    plain, free = spearmanr(x, differences), spearmanr(middle, differences)
    defined = bool(np.ptp(middle) > 0)
    return GainAgainstAlone(
        *points,
        spearman=float(plain.statistic),
        spearman_p=float(plain.pvalue),
        oldham=float(free.statistic) if defined else None,
        oldham_p=float(free.pvalue) if defined else None,
        fit=_line(x, differences),
    )


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> LinearFit:
    """Least squares, and the pointwise band of its mean."""
    found = linregress(x, y)
    grid = np.linspace(x.min(), x.max(), 50)
    line = found.intercept + found.slope * grid
    freedom = x.size - 2
    residual = np.sqrt(np.sum((y - found.intercept - found.slope * x) ** 2) / freedom)
    spread = np.sum((x - x.mean()) ** 2)
    half = t.ppf(0.975, freedom) * residual * np.sqrt(1 / x.size + (grid - x.mean()) ** 2 / spread)
    as_tuples = (tuple(values.tolist()) for values in (grid, line, line - half, line + half))
    return LinearFit(float(found.slope), float(found.intercept), *as_tuples)


@dataclass(frozen=True)
class GroupRow:
    """One group; all figures are None where it is too small to be shown."""

    group: str
    sites: int | None
    before: float | None = None  # median over the group's sites
    after: float | None = None
    median_gain: float | None = None  # positive: better
    improved: float | None = None  # share of the group's sites


@dataclass(frozen=True)
class Equity:
    """The groups, and how far apart the best and the worst of them are."""

    metric: str
    method: str
    groups: tuple[GroupRow, ...]
    spread_before: float | None  # None: fewer than two groups can be shown
    spread_after: float | None

    @property
    def hidden(self) -> int:
        """Groups too small to be shown."""
        return sum(row.sites is None for row in self.groups)


def equity(
    metric: str,
    method: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    group_of: Mapping[str, str],
    fewest_sites: int = 3,
) -> Equity:
    """Over the sites that have both values and a group."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    for site in sorted(before.keys() & after.keys() & group_of.keys()):
        members[group_of[site]].append(site)
    rows = tuple(
        _row(metric, group, sites, before, after)
        if len(sites) >= fewest_sites
        else GroupRow(group, sites=None)
        for group, sites in sorted(members.items())
    )
    return Equity(metric, method, rows, _spread([r.before for r in rows]), _spread([r.after for r in rows]))


def _row(
    metric: str, group: str, sites: list[str], before: Mapping[str, float], after: Mapping[str, float]
) -> GroupRow:
    gained = np.array([gain(metric, after[site], before[site]) for site in sites])
    return GroupRow(
        group=group,
        sites=len(sites),
        before=float(np.median([before[site] for site in sites])),
        after=float(np.median([after[site] for site in sites])),
        median_gain=float(np.median(gained)),
        improved=float(np.mean(gained > 0)),
    )


def _spread(values: list[float | None]) -> float | None:
    shown = [value for value in values if value is not None]
    return max(shown) - min(shown) if len(shown) > 1 else None
