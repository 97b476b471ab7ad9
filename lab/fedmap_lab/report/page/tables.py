"""The tables of the page as text cells: numbers rounded for people, a dash where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmap.metrics import metric_label, metric_names
from fedmap_lab.report.facts.reading import Facts
from fedmap_lab.report.facts.shown_methods import FEDMAP, shown
from fedmap_lab.report.facts.statistics import REGION, EquityBy, Statistics, TierStatistics
from fedmap_lab.statistics.paired import PairedResult
from fedmap_lab.wording import counted, p_value, plain, signed

NONE = "–"


@dataclass(frozen=True)
class TableRow:
    label: str
    cells: tuple[str, ...]
    strong: bool = False  # FedMAP itself
    best: bool = False  # the best median among those that can win
    quiet: bool = False  # oracle and variants


@dataclass(frozen=True)
class PageTable:
    title: str
    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    note: str = ""


def tier_table(facts: Facts, statistics: Statistics, tier: TierStatistics) -> PageTable:
    best = tier.best(statistics.metric)
    alone = any(row.against_alone is not None for row in tier.methods)
    against_fedmap = any(row.against_fedmap is not None for row in tier.methods)
    seeds_differ = len(facts.description.seeds) > 1
    head = [metric_label(statistics.metric), "middle half of sites"]
    head += ["range over seeds"] if seeds_differ else []
    head += ["gain over alone", "p", "sites better"] if alone else []
    head += ["gain over FedMAP", "p"] if against_fedmap else []
    rows = []
    for row in tier.methods:
        cells = [f"{row.median:.3f}", _range(row.lower, row.upper, row.sites)]
        cells += [f"{row.seed_low:.3f}–{row.seed_high:.3f}"] if seeds_differ else []
        if alone:
            cells += [*_gain(row.against_alone), _improved(row.against_alone)]
        if against_fedmap:
            cells += _gain(row.against_fedmap)
        role = shown(row.method).role
        label = shown(row.method).label
        if row.sites < tier.sites:
            label += f" ({row.sites} of {tier.sites} sites)"
        rows.append(
            TableRow(label, tuple(cells), role == "fedmap", row is best, role in ("oracle", "variant"))
        )
    return PageTable(
        f"T{tier.tier}, {counted(tier.sites)}", ("method", *head), tuple(rows), _missing(facts, tier)
    )


def other_measures(facts: Facts, tier: int) -> PageTable | None:
    """Medians over sites of the metrics that no test is made for."""
    kind = facts.description.task
    names = [name for name in metric_names(kind) if name != facts.metric]  # type: ignore[arg-type]
    names = [name for name in names if facts.scores(tier, name)]
    if not names:
        return None
    rows = []
    for method in facts.description.methods:
        found = [facts.values.get((tier, method, name)) for name in names]
        if any(found):
            cells = tuple(plain(_median(values)) if values else NONE for values in found)
            role = shown(method).role
            rows.append(
                TableRow(shown(method).label, cells, role == "fedmap", quiet=role in ("oracle", "variant"))
            )
    return PageTable(f"T{tier}", ("method", *(metric_label(name) for name in names)), tuple(rows))


def equity_tables(statistics: Statistics) -> tuple[PageTable, ...]:
    """FedMAP against training alone, by region and by column."""
    return tuple(_equity(one) for one in statistics.equity if one.found.method == FEDMAP and _can_show(one))


def hidden_equity(statistics: Statistics) -> tuple[str, ...]:
    """What there are groups of, and all of them too small."""
    return tuple(
        f"{one.by} (T{one.tier})"
        for one in statistics.equity
        if one.found.method == FEDMAP and not _can_show(one)
    )


def _can_show(one: EquityBy) -> bool:
    return one.found.hidden < len(one.found.groups)


def _equity(one: EquityBy) -> PageTable:
    head = (one.by, "sites", "alone", "FedMAP", "gain", "sites better")
    rows = []
    for group in one.found.groups:
        figures = (group.before, group.after)
        if group.sites is None or group.median_gain is None or None in figures:
            rows.append(TableRow(group.group, ("fewer than 3", *[NONE] * 4), quiet=True))
        else:
            better = f"{round((group.improved or 0.0) * group.sites)} of {group.sites}"
            rows.append(
                TableRow(
                    group.group,
                    (
                        str(group.sites),
                        f"{group.before:.3f}",
                        f"{group.after:.3f}",
                        signed(group.median_gain),
                        better,
                    ),
                )
            )
    before, after = one.found.spread_before, one.found.spread_after
    note = "Fewer than two groups can be shown, so their spread cannot be given."
    if before is not None and after is not None:
        change = round(after, 3) - round(before, 3)
        word = "fell" if change < 0 else "rose" if change > 0 else "stayed the same"
        note = f"The spread from best to worst group {word}: {before:.3f} alone, {after:.3f} with FedMAP."
    what = "By region" if one.by == REGION else f"By {one.by}"
    return PageTable(f"{what}, T{one.tier}", head, tuple(rows), note)


def _missing(facts: Facts, tier: TierStatistics) -> str:
    """Methods that ran and have no figure at this tier."""
    there = {row.method for row in tier.methods}
    ran = {method for _, method, _ in facts.values}
    absent = [shown(m).label for m in facts.description.methods if m in ran and m not in there]
    return f"No model for this tier: {', '.join(absent)}." if absent else ""


def _gain(result: PairedResult | None) -> tuple[str, str]:
    if result is None:
        return NONE, NONE
    gain = signed(result.median_gain)
    if result.low is not None and result.high is not None:
        gain += f" ({signed(result.low)} to {signed(result.high)})"
    if result.p is None:
        return gain, "no test"
    if result.p_holm is None:
        return gain, f"{p_value(result.p)} *"
    return gain, p_value(result.p_holm)


def _improved(result: PairedResult | None) -> str:
    if result is None:
        return NONE
    return f"{round(result.improved * result.sites)} of {result.sites}"


def _range(low: float, high: float, sites: int) -> str:
    return f"{low:.3f}–{high:.3f}" if sites > 1 else NONE


def _median(values: Mapping[str, float]) -> float:
    return float(np.median(list(values.values())))
