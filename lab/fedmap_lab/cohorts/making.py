"""Makes a synthetic cohort: the same name, scale and seed give the same data, a smaller scale a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import FedmapError
from fedmap_lab.cohorts import cprd, eicu, interval
from fedmap_lab.cohorts.heterogeneity import HeterogeneityTargets, measure_heterogeneity
from fedmap_lab.cohorts.site_plan import PlannedSite
from fedmap_lab.cohorts.site_table import SiteTable
from fedmap_lab.cohorts.writing import (
    CohortSummary,
    FileFormat,
    cohort_directory,
    write_description,
    write_index,
    write_site,
)


@dataclass(frozen=True)
class CohortGenerator:
    plan: Callable[[float, int], tuple[PlannedSite, ...]]
    make_site: Callable[[PlannedSite], SiteTable]
    targets: Callable[[float], HeterogeneityTargets]
    file_format: FileFormat


COHORTS: Mapping[str, CohortGenerator] = {
    "cprd": CohortGenerator(cprd.plan, cprd.make_site, cprd.targets, "csv"),
    "interval": CohortGenerator(interval.plan, interval.make_site, interval.targets, "csv"),
    "eicu": CohortGenerator(eicu.plan, eicu.make_site, eicu.targets, "parquet"),
}


def make_cohort(
    name: str,
    out: Path,
    scale: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CohortSummary:
    """Make a cohort in the directory `out`; `progress` hears (sites done, sites in all) after each site.

    `scale` multiplies the number of sites (cprd, eicu; three, one and one of the tiers always remain) or,
    where the study names its five sites, their rows (interval; at least 40 remain).
    """
    if name not in COHORTS:
        raise FedmapError(
            f"there is no synthetic cohort {name!r}", hint=f"Choose one of {', '.join(COHORTS)}."
        )
    if seed < 0:
        raise FedmapError(
            "the seed of a cohort must not be negative", hint="Use 0 or any larger whole number."
        )
    generator = COHORTS[name]
    planned = generator.plan(scale, seed)
    tables: list[SiteTable] = []
    with cohort_directory(out) as directory:
        for site in planned:
            table = generator.make_site(site)
            write_site(directory, table, generator.file_format)
            tables.append(table)
            if progress is not None:
                progress(len(tables), len(planned))
        write_index(directory, planned)
        summary = CohortSummary(
            name=name,
            directory=out,
            seed=seed,
            scale=scale,
            sites=len(tables),
            rows=sum(int(table.usable.sum()) for table in tables),
            excluded_rows=sum(int((~table.usable).sum()) for table in tables),
            heterogeneity=measure_heterogeneity(tables, generator.targets(scale)),
        )
        write_description(directory, summary)
    return summary
