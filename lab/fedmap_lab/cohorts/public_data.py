"""Public multi-site data sets as cohort directories: `sites.csv` and one file per site.

Where the files come from (none of them is part of this project):

- UCI Heart Disease: the UCI Machine Learning Repository, "Heart Disease"; the cut of 740 complete rows with
  its folds (`flamby_split_740.csv`) is FLamby's Fed-Heart-Disease.
- TCGA-BRCA: `brca.csv` and `train_test_split.csv` of FLamby's Fed-TCGA-BRCA, drawn from the GDC's open data.
- eICU: PhysioNet, "eICU Collaborative Research Database Demo" (open) or the full database (by agreement).

The importers re-arrange. They check that the files are what they say, but drop no patient for an odd value:
that is the loader's part, under the study plan. Only the eICU rules choose stays, and every stay they drop
is in the summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from fedmap.data.table.site_dataset import Exclusion
from fedmap.errors import DataError, FedmapError
from fedmap_lab.eicu.extraction import EicuRules, EicuStays, extract_stays, wide_table
from fedmap_lab.eicu.tables import (
    HOSPITAL,
    PATIENT,
    UNKNOWN_REGION,
    SiteRule,
    load_eicu_tables,
    regions_of_hospitals,
    split_by_site,
)
from fedmap_lab.eicu.vocabulary import Vocabulary, count_terms, pool_vocabulary, to_json

_HEART_FILE = "flamby_split_740.csv"
_HEART_SITES = ("cleveland", "hungary", "switzerland", "va")  # FLamby's site numbers 0 to 3
_HEART_COUNTRIES = ("US", "Hungary", "Switzerland", "US")
_HEART_FEATURES = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
_HEART_COLUMNS = [*_HEART_FEATURES, "num"]
_HEART_HINT = (
    "the rows are the UCI Machine Learning Repository's 'Heart Disease', the split FLamby's Fed-Heart-Disease"
)
_BRCA_FILE, _BRCA_SPLIT_FILE = "brca.csv", "train_test_split.csv"
_BRCA_HINT = "take both files from FLamby's Fed-TCGA-BRCA (GDC open access), unchanged"
_FOLDS = ("train", "test")
_TIERS = (1, 2, 3)
# Tier by complete stays, as in the published study: more than 400 train, 100 to 400 fine-tune, fewer predict.
_TIER1_ABOVE, _TIER2_FROM = 400, 100


@dataclass(frozen=True)
class ImportedSite:
    site: str
    tier: int
    region: str
    rows: int
    exclusions: tuple[Exclusion, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportSummary:
    """What an import wrote, and what it left out."""

    out: Path
    sites: tuple[ImportedSite, ...]
    left_out: tuple[ImportedSite, ...] = ()  # sites without a single usable row: no file
    exclusions: tuple[Exclusion, ...] = ()  # rows that belong to no site
    notes: tuple[str, ...] = ()
    vocabulary: Vocabulary | None = None

    @property
    def rows(self) -> int:
        return sum(site.rows for site in self.sites)


def import_uci_heart(source: Path, out: Path, tiers: Mapping[str, int] | None = None) -> ImportSummary:
    """Four hospitals, FLamby's 740 complete rows. Its column `y` is left out: it is the outcome, num > 0."""
    table = _read(source / _HEART_FILE, [*_HEART_COLUMNS, "site", "fold"], _HEART_HINT)
    numbers = pd.to_numeric(table["site"], errors="coerce")
    _require(
        source / _HEART_FILE,
        {
            "column site: rows with a number other than 0 to 3": ~numbers.isin(range(len(_HEART_SITES))),
            "column fold: rows that are neither train nor test": ~table["fold"].isin(_FOLDS),
        },
        _HEART_HINT,
    )
    frames = {
        name: table.loc[numbers == number, [*_HEART_COLUMNS, "fold"]]
        for number, name in enumerate(_HEART_SITES)
    }
    return _write_plain(out, frames, dict(zip(_HEART_SITES, _HEART_COUNTRIES, strict=True)), tiers)


def import_tcga_brca(source: Path, out: Path, tiers: Mapping[str, int] | None = None) -> ImportSummary:
    """Six regions, survival: T in days, E the event. Rows with T ≤ 0 are kept: the loader excludes them."""
    patients = _read(source / _BRCA_FILE, ["pid", "E", "T"], _BRCA_HINT)
    split = _read(source / _BRCA_SPLIT_FILE, ["pid", "fold2"], _BRCA_HINT)[["pid", "fold2"]]
    place = split["fold2"].astype(str).str.extract(r"^(train|test)_(\d)$")
    _require(
        source / _BRCA_SPLIT_FILE,
        {
            "column pid: repeated rows": split["pid"].duplicated(),
            "column fold2: rows that are not train_N or test_N": place.isna().any(axis=1),
            f"column pid: rows that are not in {_BRCA_FILE}": ~split["pid"].isin(patients["pid"]),
        },
        _BRCA_HINT,
    )
    _require(source / _BRCA_FILE, {"column pid: repeated rows": patients["pid"].duplicated()}, _BRCA_HINT)
    placed = patients.merge(
        pd.DataFrame({"pid": split["pid"], "fold": place[0], "site": "region" + place[1]}), on="pid"
    )
    frames = {str(site): rows.drop(columns="site") for site, rows in placed.groupby("site")}
    summary = _write_plain(out, frames, {site: site for site in frames}, tiers)
    unplaced = len(patients) - len(placed)
    if not unplaced:
        return summary
    return replace(summary, exclusions=(Exclusion(f"no site in {_BRCA_SPLIT_FILE}", unplaced),))


def import_eicu(
    source: Path,
    out: Path,
    by: SiteRule = "region",
    rules: EicuRules | None = None,
    *,
    tiers: Mapping[str, int] | None = None,
    min_cell: int = 5,
    min_stays: int = 10,
    min_sites: int = 2,
) -> ImportSummary:
    """Raw eICU tables, one wide Parquet file per hospital or region, and the vocabulary their columns follow.

    Each site's rows are made from its own tables alone. The tier 1 sites build the vocabulary, as they would
    in a federation; the others are encoded with it, and what it lacks for them is in their notes.
    """
    tables = load_eicu_tables(source)
    regions = regions_of_hospitals(tables)
    site_tables = split_by_site(tables, by)
    region_of = {site: regions[str(own.patient[HOSPITAL].iloc[0])] for site, own in site_tables.items()}
    extracted = {site: extract_stays(own, rules or EicuRules()) for site, own in site_tables.items()}
    tier_of = {site: _eicu_tier(site, stays, by) for site, stays in extracted.items()}
    tier_of.update(_checked_tiers(tiers, tier_of))

    trained = [site for site in extracted if tier_of[site] == 1]
    if not trained:
        raise DataError(
            source.name,
            (f"none of {len(extracted)} sites has more than {_TIER1_ABOVE} complete stays: no tier 1",),
            hint="import by region, or name tier 1 sites in `tiers`; the demo's hospitals are too small",
        )
    counted = [count_terms(site, extracted[site].occurrences, min_cell) for site in trained]
    vocabulary = pool_vocabulary(counted, min_stays, min_sites)

    sites: list[ImportedSite] = []
    left_out: list[ImportedSite] = []
    frames: dict[str, pd.DataFrame] = {}
    for site, stays in extracted.items():
        wide = wide_table(stays, vocabulary)
        unknown = (
            f"{wide.unknown_occurrences} of {len(stays.occurrences)} drug and diagnosis records are outside "
            f"the vocabulary ({wide.unknown_terms} different terms)"
        )
        imported = ImportedSite(
            site=site,
            tier=tier_of[site],
            region=region_of[site],
            rows=len(wide.frame),
            exclusions=stays.exclusions,
            notes=(
                unknown,
                *stays.notes,
                *(f"{entry.rows} not used: {entry.reason}" for entry in stays.unused_records),
            ),
        )
        if imported.rows:
            frames[site] = wide.frame
            sites.append(imported)
        else:
            left_out.append(imported)
    _write(out, frames, sites, "parquet")
    (out / "vocabulary.json").write_text(to_json(vocabulary), encoding="utf-8")
    notes = [f"{entry.rows} records dropped: {entry.reason}" for entry in tables.dropped]
    notes.append(f"patients with stays at more than one site: {_shared_patients(frames)}")
    return ImportSummary(
        out, tuple(sites), left_out=tuple(left_out), notes=tuple(notes), vocabulary=vocabulary
    )


def _eicu_tier(site: str, stays: EicuStays, by: SiteRule) -> int:
    if by == "region":
        return 3 if site == UNKNOWN_REGION else 1
    rows = len(stays.stays)
    if rows > _TIER1_ABOVE:
        return 1
    return 2 if rows >= _TIER2_FROM else 3


def _shared_patients(frames: Mapping[str, pd.DataFrame]) -> int:
    pairs = pd.concat([frame[[PATIENT]].drop_duplicates() for frame in frames.values()])
    return int(pairs.loc[pairs[PATIENT].duplicated(), PATIENT].nunique())


def _checked_tiers(tiers: Mapping[str, int] | None, sites: Mapping[str, object]) -> Mapping[str, int]:
    wrong = {site: tier for site, tier in (tiers or {}).items() if site not in sites or tier not in _TIERS}
    if wrong:
        raise FedmapError(
            f"tiers: {', '.join(f'{site} = {tier}' for site, tier in sorted(wrong.items()))} cannot be",
            hint=f"the sites are {', '.join(sorted(sites))}; the tiers are 1, 2 and 3",
        )
    return tiers or {}


def _read(file: Path, columns: Sequence[str], hint: str) -> pd.DataFrame:
    if not file.is_file():
        raise DataError(file.parent.name, (f"the file {file.name} is missing",), hint=hint)
    try:
        table = pd.read_csv(file)
    except ValueError:  # empty, not text, ragged; the reader's own words may hold a patient's value
        raise DataError(file.parent.name, (f"{file.name} cannot be read as CSV",), hint=hint) from None
    absent = [column for column in columns if column not in table.columns]
    if absent:
        problems = tuple(f"{file.name}: column {column} is missing" for column in absent)
        raise DataError(file.parent.name, problems, hint=hint)
    return table


def _require(file: Path, faults: Mapping[str, pd.Series[bool]], hint: str) -> None:
    counts = {fault: int(rows.sum()) for fault, rows in faults.items()}
    problems = tuple(f"{file.name}: {fault} ({count})" for fault, count in counts.items() if count)
    if problems:
        raise DataError(file.parent.name, problems, hint=hint)


def _write_plain(
    out: Path, frames: Mapping[str, pd.DataFrame], regions: Mapping[str, str], tiers: Mapping[str, int] | None
) -> ImportSummary:
    """Write a cohort in which every site is tier 1 unless `tiers` says otherwise and no row is left out."""
    chosen = _checked_tiers(tiers, frames)
    sites = tuple(
        ImportedSite(site, chosen.get(site, 1), regions[site], len(frame)) for site, frame in frames.items()
    )
    _write(out, frames, sites, "csv")
    return ImportSummary(out, sites)


def _write(out: Path, frames: Mapping[str, pd.DataFrame], sites: Sequence[ImportedSite], ending: str) -> None:
    """Write the cohort directory. A folder with files is refused: old sites would join the new cohort."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedmapError(f"{out.name} exists and is not empty", hint="name a new folder, or empty this one")
    out.mkdir(parents=True, exist_ok=True)
    for site, frame in frames.items():
        if ending == "csv":
            frame.to_csv(out / f"{site}.csv", index=False)
        else:
            frame.to_parquet(out / f"{site}.parquet", index=False)
    pd.DataFrame(
        [(site.site, site.tier, site.region) for site in sites], columns=["site", "tier", "region"]
    ).to_csv(out / "sites.csv", index=False)
