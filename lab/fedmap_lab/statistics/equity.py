"""Who is left behind: performance by group of sites, before (alone) and after (a method).

A group is a region, or whatever a site belongs to. Groups of fewer sites than the floor are not shown: their
median would be nearly one site's value. How far the best and the worst group lie apart is taken over the
groups that are shown, and before and after over the same sites.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmap_lab.statistics.paired import gain


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
