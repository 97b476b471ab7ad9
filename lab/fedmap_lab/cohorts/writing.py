"""The cohort directory: one file per site, `sites.csv`, and `cohort.json` with the table of heterogeneity.

A cohort is written beside its place and moved there when it is whole: a directory of that name is never half
made. A former synthetic cohort is replaced; a directory with anything else in it is refused.

Nothing per patient is in `cohort.json`, and the known risk is in no file.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedmap.errors import FedmapError
from fedmap_lab.cohorts.heterogeneity import Heterogeneity
from fedmap_lab.cohorts.site_plan import PlannedSite
from fedmap_lab.cohorts.site_table import SiteTable

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
