"""From the facts of a comparison to gains, tests, who gains, and equity. Pure: no files, no drawing.

Everything is paired over sites and made for the plan's metric. Methods are held against individual training
(T1 and T2; nobody trains alone at T3) and against FedMAP; p-values are corrected for the methods that can
win, those of the oracle and of variants stay as they are. Equity compares training alone with one method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmap.metrics import METRICS
from fedmap_lab.report.facts.reading import Facts
from fedmap_lab.report.facts.shown_methods import ALONE, FEDMAP, is_contender
from fedmap_lab.statistics.paired import PairedResult, compare_all
from fedmap_lab.statistics.who_gains import Equity, GainAgainstAlone, equity, gain_against_alone

REGION = "region"


@dataclass(frozen=True)
class MethodAtTier:
    """One method at the sites of one tier."""

    tier: int
    method: str
    sites: int
    median: float  # over sites, of their mean over seeds
    lower: float  # quartiles over sites
    upper: float
    seed_low: float  # the median over sites, least and largest of the seeds
    seed_high: float
    ranked: float | None  # median over the sites at which methods are ranked; None: it lacks one of them
    against_alone: PairedResult | None
    against_fedmap: PairedResult | None


@dataclass(frozen=True)
class TierStatistics:
    """One tier, methods in the order of the comparison."""

    tier: int
    sites: int
    methods: tuple[MethodAtTier, ...]

    def find(self, method: str) -> MethodAtTier | None:
        return next((row for row in self.methods if row.method == method), None)

    def best(self, metric: str, without: str = "") -> MethodAtTier | None:
        """The contender with the best median over the same sites; None where none can be ranked."""
        rows = [
            (closeness(metric, row.ranked), row)
            for row in self.methods
            if row.ranked is not None and is_contender(row.method) and row.method != without
        ]
        return max(rows, key=lambda pair: pair[0])[1] if rows else None


@dataclass(frozen=True)
class WhoGains:
    tier: int
    found: GainAgainstAlone


@dataclass(frozen=True)
class EquityBy:
    """Sites by region, or values of a column."""

    by: str  # "region", or the column
    tier: int
    found: Equity


@dataclass(frozen=True)
class Statistics:
    metric: str
    tiers: tuple[TierStatistics, ...]
    who_gains: tuple[WhoGains, ...]
    equity: tuple[EquityBy, ...]

    def tier(self, tier: int) -> TierStatistics | None:
        return next((one for one in self.tiers if one.tier == tier), None)


def closeness(metric: str, value: float) -> float:
    """More is better, for every metric."""
    return -abs(value - METRICS[metric].ideal)


def compute(facts: Facts) -> Statistics:
    """All of it."""
    tiers = tuple(found for tier in (1, 2, 3) if (found := _tier(facts, tier)) is not None)
    return Statistics(facts.metric, tiers, tuple(_who_gains(facts)), tuple(_equity(facts)))


def _tier(facts: Facts, tier: int) -> TierStatistics | None:
    scores = facts.scores(tier)
    if not scores:
        return None
    alone, fedmap = (_against(facts.metric, reference, scores) for reference in (ALONE, FEDMAP))
    compared = _ranking_sites(scores)
    rows = []
    for method, values in scores.items():
        ranked = float(np.median([values[s] for s in compared])) if compared <= values.keys() else None
        lower, median, upper = np.percentile(list(values.values()), [25, 50, 75])
        seeds = facts.by_seed[tier, method]
        rows.append(
            MethodAtTier(
                *(tier, method, len(values), float(median), float(lower), float(upper)),
                *(min(seeds), max(seeds), ranked, alone.get(method), fedmap.get(method)),
            )
        )
    return TierStatistics(tier, len(facts.tier(tier)), tuple(rows))


def _ranking_sites(scores: Mapping[str, Mapping[str, float]]) -> frozenset[str]:
    """Medians over different sites say nothing of methods: those of FedMAP count, or else of the contender
    with the most."""
    if FEDMAP in scores:
        return frozenset(scores[FEDMAP])
    contenders = [frozenset(values) for method, values in scores.items() if is_contender(method)]
    return max(contenders or [frozenset(values) for values in scores.values()], key=len)


def _against(
    metric: str, reference: str, scores: Mapping[str, Mapping[str, float]]
) -> dict[str, PairedResult]:
    if reference not in scores:
        return {}
    can_win = [method for method in scores if is_contender(method)]
    return {result.method: result for result in compare_all(metric, reference, scores, corrected=can_win)}


def _who_gains(facts: Facts) -> list[WhoGains]:
    found = []
    for tier in (1, 2):
        scores = facts.scores(tier)
        alone = scores.get(ALONE)
        if alone is not None:
            found += [
                WhoGains(tier, gain_against_alone(facts.metric, method, values, alone))
                for method, values in scores.items()
                if method != ALONE
            ]
    return found


def _equity(facts: Facts) -> list[EquityBy]:
    found = []
    regions = {site.name: site.region for site in facts.sites if site.region}
    columns = list(dict.fromkeys(column for _, _, column in facts.subgroups))
    for tier in (1, 2):
        scores = facts.scores(tier)
        alone = scores.get(ALONE)
        if alone is None:
            continue
        for method, values in scores.items():
            if method == ALONE:
                continue
            by_region = equity(facts.metric, method, alone, values, regions)
            found += [EquityBy(REGION, tier, by_region)] if len(by_region.groups) > 1 else []
            for column in columns:
                by_column = _by_column(facts, tier, method, column)
                found += [EquityBy(column, tier, by_column)] if by_column.groups else []
    return found


def _by_column(facts: Facts, tier: int, method: str, column: str) -> Equity:
    """A site counts once in each category: as if a site's patients of a category were a site."""
    parts = (facts.subgroups.get((tier, name, column), {}) for name in (ALONE, method))
    before, after = ({f"{site}\n{category}": v for (site, category), v in part.items()} for part in parts)
    category_of = {key: key.partition("\n")[2] for key in before}
    return equity(facts.metric, method, before, after, category_of)
