"""The statistics as tidy CSV files, beside the tables they were made from.

gains.csv            tier, method, reference: medians, gain with interval, Wilcoxon and Holm, share improved
who_gains.csv        tier, method: gain against individual performance, correlations and line
who_gains_line.csv   the line and its 95 % band on a grid
equity.csv           by, tier, method, group: before, after, gain (small groups named, without figures)
equity_spread.csv    by, tier, method: best minus worst group before and after
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from fedmap_lab.report.facts.statistics import Statistics
from fedmap_lab.statistics.paired import PairedResult
from fedmap_lab.statistics.who_gains import GroupRow
from fedmap_lab.tables import Row, write_table

_PAIRED = tuple(field.name for field in fields(PairedResult))
_GROUP = tuple(field.name for field in fields(GroupRow))
_WHO = ("spearman", "spearman_p", "oldham", "oldham_p")


def write_statistics(statistics: Statistics, out: Path) -> None:
    """Each file whole, or as it was before."""
    write_table(out / "gains.csv", ("tier", *_PAIRED), _gains(statistics))
    write_table(
        out / "who_gains.csv",
        ("tier", "metric", "method", "sites", *_WHO, "slope", "intercept", "note"),
        _who_gains(statistics),
    )
    write_table(
        out / "who_gains_line.csv", ("tier", "method", "alone", "line", "low", "high"), _lines(statistics)
    )
    write_table(out / "equity.csv", ("by", "tier", "metric", "method", *_GROUP), _groups(statistics))
    write_table(
        out / "equity_spread.csv",
        ("by", "tier", "metric", "method", "groups", "hidden", "spread_before", "spread_after"),
        (
            (one.by, one.tier, e.metric, e.method, len(e.groups), e.hidden, e.spread_before, e.spread_after)
            for one in statistics.equity
            for e in (one.found,)
        ),
    )


def _gains(statistics: Statistics) -> Iterator[Row]:
    for tier in statistics.tiers:
        for side in ("against_alone", "against_fedmap"):
            for row in tier.methods:
                result = getattr(row, side)
                if result is not None:
                    yield (tier.tier, *asdict(result).values())


def _who_gains(statistics: Statistics) -> Iterator[Row]:
    for one in statistics.who_gains:
        found = one.found
        fit = (None, None) if found.fit is None else (found.fit.slope, found.fit.intercept)
        figures = (getattr(found, name) for name in _WHO)
        yield (one.tier, found.metric, found.method, len(found.sites), *figures, *fit, found.note)


def _lines(statistics: Statistics) -> Iterator[Row]:
    for one in statistics.who_gains:
        if (fit := one.found.fit) is not None:
            for point in zip(fit.grid, fit.line, fit.low, fit.high, strict=True):
                yield (one.tier, one.found.method, *point)


def _groups(statistics: Statistics) -> Iterator[Row]:
    for one in statistics.equity:
        for row in one.found.groups:
            yield (one.by, one.tier, one.found.metric, one.found.method, *asdict(row).values())
