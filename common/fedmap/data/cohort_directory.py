"""Reads the list of a cohort directory: `sites.csv` (site, tier, region) and one file per site beside it.

It finds the files and checks the list, all problems at once. It does not open the sites' files.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import DataError

_COLUMNS = ("site", "tier", "region")
_TIERS = {"1": 1, "2": 2, "3": 3}
_HINT = (
    "A cohort directory holds sites.csv with the columns site, tier (1, 2 or 3) and region, "
    "and for each site one file <site>.csv or <site>.parquet."
)


@dataclass(frozen=True)
class SiteEntry:
    """One site of a cohort and where its data are."""

    site: str
    tier: int
    region: str
    path: Path


def read_cohort_directory(path: Path) -> tuple[SiteEntry, ...]:
    """The sites of a cohort, sorted by name."""
    rows = _read_list(path)
    problems: list[str] = []
    entries: list[SiteEntry] = []
    for line, row in enumerate(rows, start=1):
        site, tier = row["site"], _TIERS.get(row["tier"])
        if not is_plain_name(site):
            problems.append(f"sites.csv, entry {line}: the site's name must be a plain file name")
            continue
        if tier is None:
            problems.append(f"{site}: the tier must be 1, 2 or 3")
        file, problem = _find_file(path, site)
        if problem:
            problems.append(problem)
        if tier is not None and file is not None:
            entries.append(SiteEntry(site, tier, row["region"], file))
    counts = Counter(row["site"] for row in rows)
    problems += [f"{site}: listed {count} times" for site, count in counts.items() if count > 1]
    if problems:
        raise _refused(path, *problems)
    return tuple(sorted(entries, key=lambda entry: entry.site))


def _read_list(path: Path) -> list[dict[str, str]]:
    """The entries of sites.csv, all three columns as stripped text."""
    if not path.is_dir():
        raise _refused(path, "there is no such directory")
    try:
        with (path / "sites.csv").open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise _refused(path, *(f"sites.csv has no column {name}" for name in missing))
            rows = [{name: row[name].strip() for name in _COLUMNS} for row in reader]
    except FileNotFoundError:
        raise _refused(path, "sites.csv is missing") from None
    except (OSError, UnicodeDecodeError, csv.Error):
        raise _refused(path, "sites.csv cannot be read as UTF-8 CSV") from None
    if not rows:
        raise _refused(path, "sites.csv lists no site")
    return rows


def is_plain_name(site: str) -> bool:
    """Whether a name can only mean a file in the directory itself."""
    return bool(site) and site.isprintable() and site[0] != "." and not set(site) & set("/\\:")


def _find_file(path: Path, site: str) -> tuple[Path | None, str]:
    found = [file for suffix in (".csv", ".parquet") if (file := path / f"{site}{suffix}").is_file()]
    if len(found) == 1 and found[0].name != "sites.csv":
        return found[0], ""
    return None, f"{site}: {'has both a .csv and a .parquet file' if len(found) == 2 else 'has no file'}"


def _refused(path: Path, *problems: str) -> DataError:
    return DataError(path.name, problems, hint=_HINT)
