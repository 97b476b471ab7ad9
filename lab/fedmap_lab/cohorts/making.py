"""Makes a synthetic cohort: the same name, scale and seed give the same data, a smaller scale a part.

A cohort is written beside its place and moved there when it is whole. A former synthetic cohort is replaced;
a directory with anything else in it is refused. No patient and no known risk is in `cohort.json`.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedmap.errors import FedmapError
from fedmap_lab.cohorts import cprd, eicu, interval
from fedmap_lab.cohorts.heterogeneity import Heterogeneity, HeterogeneityTargets, measure_heterogeneity
from fedmap_lab.cohorts.site_plan import PlannedSite, SiteTable

FileFormat = Literal["csv", "parquet"]
INDEX, DESCRIPTION = "sites.csv", "cohort.json"
GENERATOR, VERSION = "fedmap-lab cohort", 1


@dataclass(frozen=True)
class CohortSummary:
    """What was made, in numbers."""

    name: str
    directory: Path
    seed: int
    scale: float
    sites: int
    rows: int
    """Usable rows, over all sites."""
    excluded_rows: int
    """Rows made for the loader to exclude."""
    heterogeneity: Heterogeneity


@contextmanager
def cohort_directory(out: Path) -> Iterator[Path]:
    """A fresh directory to write into; it takes the place of `out` if the block ends well."""
    _check_replaceable(out)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)


def _check_replaceable(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise FedmapError(f"{out} is a file, not a directory", hint="Give a directory for the cohort.")
    found = {path.name for path in out.iterdir()}
    if not found:
        return
    if not {INDEX, DESCRIPTION} <= found:
        raise FedmapError(
            f"{out} is not empty and holds no synthetic cohort",
            hint="Give a new directory, or empty this one yourself.",
        )
    with (out / INDEX).open(newline="", encoding="utf-8") as handle:
        sites = [row["site"] for row in csv.DictReader(handle)]
    foreign = found - {INDEX, DESCRIPTION} - {f"{s}.{kind}" for s in sites for kind in ("csv", "parquet")}
    if foreign:
        raise FedmapError(
            f"{out} holds a synthetic cohort and {len(foreign)} other file(s)",
            hint="Move the other files away, or give a new directory.",
        )


def write_site(directory: Path, table: SiteTable, file_format: FileFormat) -> None:
    # Without pandas' own schema notes: with thousands of columns those dwarf the data. A shallow copy, since
    # pandas keeps every column object it has handed out as long as the frame lives.
    names, columns = zip(*table.frame.copy(deep=False).items(), strict=True)
    content = pa.Table.from_arrays([pa.array(column.to_numpy()) for column in columns], names=names)
    path = directory / f"{table.site.site}.{file_format}"
    if file_format == "csv":
        pa.csv.write_csv(content, path, pa.csv.WriteOptions(quoting_style="needed", quoting_header="none"))
    else:
        pa.parquet.write_table(content, path, use_dictionary=False, write_statistics=False)


def write_index(directory: Path, sites: Sequence[PlannedSite]) -> None:
    with (directory / INDEX).open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["site", "tier", "region"])
        writer.writerows([site.site, site.tier, site.region] for site in sites)


def write_description(directory: Path, summary: CohortSummary) -> None:
    text = {
        "generator": f"{GENERATOR} {summary.name}",
        "version": VERSION,
        "seed": summary.seed,
        "scale": summary.scale,
        "sites": summary.sites,
        "rows": summary.rows,
        "excluded_rows": summary.excluded_rows,
        "most_predictive_feature": summary.heterogeneity.feature,
        "heterogeneity": [asdict(row) for row in summary.heterogeneity.rows],
    }
    (directory / DESCRIPTION).write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")


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
