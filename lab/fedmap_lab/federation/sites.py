"""A cohort directory made ready to train: every site loaded, checked and scaled, or excluded with a reason.

What a real federation does before its first round (checks, pooled statistics) happens here in one process.
A site that fails its checks is excluded and recorded; it never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.pooling.statistics import Scaler, make_scaler, pool_statistics
from fedmap.algorithm.settings import FedmapSettings
from fedmap.data.cohort_directory import SiteEntry, read_cohort_directory
from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset, scale_dataset
from fedmap.errors import DataError, TrainingError
from fedmap.scoring.disclosure import released_statistics
from fedmap.study.models import build_model
from fedmap.study.plan.study_plan import StudyPlan


@dataclass(frozen=True)
class Site:
    name: str
    tier: int
    region: str
    data: SiteDataset  # scaled


@dataclass(frozen=True)
class ExcludedSite:
    """A site whose data did not pass the checks, and all the reasons."""

    name: str
    tier: int
    region: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Federation:
    plan: StudyPlan
    model: Model
    settings: FedmapSettings
    sites: tuple[Site, ...]  # sorted by name
    excluded: tuple[ExcludedSite, ...]
    scaler: Scaler  # pooled over the T1 sites

    def tier(self, tier: int) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.tier == tier)


def load_federation(
    plan: StudyPlan, directory: Path, on_site: Callable[[int, int], None] | None = None
) -> Federation:
    """Load all sites of a cohort directory. Too few usable T1 sites for the plan's quorum is an error."""
    entries = read_cohort_directory(directory)
    loaded: list[tuple[SiteEntry, SiteDataset]] = []
    excluded: list[ExcludedSite] = []
    for done, entry in enumerate(entries, start=1):
        try:
            data = load_site(plan, entry.site, entry.path, entry.tier)
            if loaded and data.layout != loaded[0][1].layout:
                raise DataError(
                    entry.site,
                    ("the model's inputs differ from those of the first site",),
                    hint="all sites must have the same feature columns",
                )
            loaded.append((entry, data))
        except DataError as error:
            excluded.append(ExcludedSite(entry.site, entry.tier, entry.region, error.problems))
        if on_site is not None:
            on_site(done, len(entries))
    _require_quorum(plan, directory, loaded, excluded)
    scaler = _pooled_scaler(plan, loaded)
    layout = loaded[0][1].layout
    sites: list[Site] = []
    for entry, data in loaded:
        try:
            sites.append(Site(entry.site, entry.tier, entry.region, scale_dataset(plan, data, scaler)))
        except TrainingError as error:  # local scaling of a site with a single row
            excluded.append(ExcludedSite(entry.site, entry.tier, entry.region, (error.message,)))
    return Federation(
        plan=plan,
        model=build_model(plan, layout.groups, len(layout.names)),
        settings=plan.settings,
        sites=tuple(sites),
        excluded=tuple(excluded),
        scaler=scaler,
    )


def _require_quorum(
    plan: StudyPlan,
    directory: Path,
    loaded: list[tuple[SiteEntry, SiteDataset]],
    excluded: list[ExcludedSite],
) -> None:
    training = sum(entry.tier == 1 for entry, _ in loaded)
    if training >= plan.rounds.quorum:
        return
    reasons = [f"{site.name}: {problem}" for site in excluded for problem in site.problems]
    raise DataError(
        directory.name,
        (f"{training} usable T1 site(s), the plan's quorum is {plan.rounds.quorum}", *reasons),
        hint="mend the sites named above, give more sites tier 1 in sites.csv, or lower rounds.quorum",
    )


def _pooled_scaler(plan: StudyPlan, loaded: list[tuple[SiteEntry, SiteDataset]]) -> Scaler:
    """From what the T1 sites would let go of: no small cells, as at a real site."""
    scaled = loaded[0][1].layout.scaled
    terms = {}
    for entry, data in loaded:
        if entry.tier == 1:
            rows = torch.cat([data.train.features, data.validation.features])
            terms[entry.site] = released_statistics(rows, scaled, plan.limits.min_cell).statistics
    return make_scaler(pool_statistics(terms), scaled)
