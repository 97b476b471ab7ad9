"""Reads the raw eICU tables as PhysioNet ships them and cuts them by site.

Only the columns the study needs are read, and of the physical examinations only the seven measurements
it uses. Records that cannot be placed (no readable stay or time, a repeated key, a stay that is not in
the patient table) are dropped here and counted. Which stays enter a study is decided in `extraction`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd

from fedmap.data.table.site_dataset import Exclusion
from fedmap.errors import DataError

SiteRule = Literal["hospital", "region"]

STAY = "patientunitstayid"
PATIENT = "uniquepid"
HOSPITAL = "hospitalid"
UNKNOWN_REGION = "unknown"

# A coma score is the last part of its path ("…/GCS/Eyes Score/4"); a vital sign names itself there
# ("…/Vital Sign and Physiological Data/HR/HR Current") and has its value in the text column. The Lowest
# and Highest of the day, and the ventilator's rate, have other last parts and are not read.
GCS_PARTS = {"Eyes Score": "gcs_eyes", "Motor Score": "gcs_motor", "Verbal Score": "gcs_verbal"}
VITAL_PARTS = {
    "HR Current": "heart_rate",
    "BP (systolic) Current": "systolic_bp",
    "Resp Current": "respiration",
    "O2 Sat% Current": "o2_saturation",
}
PHYSIOLOGY = (*GCS_PARTS.values(), *VITAL_PARTS.values())

_ROWS_AT_A_TIME = 500_000
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error)  # no such file, cut or damaged gzip, not CSV
_SOURCE_HINT = (
    "get the tables from PhysioNet (eICU Collaborative Research Database, or its open Demo) and put them "
    "in one folder as .csv or .csv.gz with their own names"
)


@dataclass(frozen=True)
class _TableShape:
    name: str  # PhysioNet's file name without its ending
    key: str
    numbers: tuple[str, ...]  # without a number here a record cannot be placed
    texts: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.key, *self.numbers, *self.texts)


_PATIENT = _TableShape(
    "patient",
    STAY,
    (),
    (
        PATIENT,
        HOSPITAL,
        "age",
        "admissionheight",
        "admissionweight",
        "unitdischargeoffset",
        "unitdischargestatus",
    ),
)
_HOSPITAL = _TableShape("hospital", HOSPITAL, (), ("region",))
_DIAGNOSIS = _TableShape("diagnosis", "diagnosisid", (STAY, "diagnosisoffset"), ("icd9code",))
_MEDICATION = _TableShape(
    "medication",
    "medicationid",
    (STAY, "drugorderoffset", "drugstartoffset"),
    ("drugordercancelled", "drugname"),
)
_PHYSICAL_EXAM = _TableShape(
    "physicalExam",
    "physicalexamid",
    (STAY, "physicalexamoffset"),
    ("physicalexampath", "physicalexamtext"),
)
_TABLES = (_PATIENT, _HOSPITAL, _DIAGNOSIS, _MEDICATION, _PHYSICAL_EXAM)


@dataclass(frozen=True, eq=False)
class EicuTables:
    """The tables of one site, or of several together, each record placeable in a stay and in time."""

    patient: pd.DataFrame  # one row per stay
    hospital: pd.DataFrame
    diagnosis: pd.DataFrame
    medication: pd.DataFrame
    physical_exam: pd.DataFrame  # with `measurement`, one of PHYSIOLOGY, and `reading`, still text
    dropped: tuple[Exclusion, ...]  # records that could not be placed


def load_eicu_tables(folder: Path) -> EicuTables:
    """Read patient, hospital, diagnosis, medication and physicalExam from a folder of CSV files."""
    site = folder.name
    found = {shape.name: _find_files(folder, shape.name) for shape in _TABLES}
    problems = [f"table {name} is missing" for name, files in found.items() if not files]
    problems += [
        f"table {name} is there {len(files)} times: {', '.join(file.name for file in files)}"
        for name, files in found.items()
        if len(files) > 1
    ]
    headers = {name: _header(files[0], site) for name, files in found.items() if len(files) == 1}
    for shape in _TABLES:
        absent = [column for column in shape.columns if column not in headers.get(shape.name, shape.columns)]
        problems += [f"table {shape.name}: column {column} is missing" for column in absent]
    if problems:
        raise DataError(site, tuple(problems), hint=_SOURCE_HINT)

    raw = {shape.name: _read(found[shape.name][0], headers[shape.name], shape, site) for shape in _TABLES}
    patient = _checked_patients(raw["patient"], site)
    stays = pd.Index(patient[STAY])
    dropped: list[Exclusion] = []
    placed = {
        shape.name: _placed(raw[shape.name], shape, stays, dropped)
        for shape in (_DIAGNOSIS, _MEDICATION, _PHYSICAL_EXAM)
    }
    return EicuTables(
        patient=patient,
        hospital=_checked_hospitals(raw["hospital"], site),
        diagnosis=placed["diagnosis"],
        medication=placed["medication"],
        physical_exam=placed["physicalExam"],
        dropped=tuple(dropped),
    )


def regions_of_hospitals(tables: EicuTables) -> Mapping[str, str]:
    """The region of every hospital that has stays; `unknown` where the hospital table does not say."""
    known = tables.hospital.dropna(subset=["region"]).set_index(HOSPITAL)["region"].str.lower()
    hospitals = sorted(tables.patient[HOSPITAL].unique())
    return {hospital: str(known.get(hospital, UNKNOWN_REGION)) for hospital in hospitals}


def split_by_site(tables: EicuTables, by: SiteRule) -> dict[str, EicuTables]:
    """Cut the tables as the sites of a federation would hold them: each only its own stays."""
    regions = regions_of_hospitals(tables)
    names = {
        hospital: region if by == "region" else f"hospital_{hospital.zfill(3)}"
        for hospital, region in regions.items()
    }
    site_of_stay = pd.Series(
        tables.patient[HOSPITAL].map(names).to_numpy(), index=pd.Index(tables.patient[STAY])
    )
    patient, diagnosis, medication, physical_exam = (
        {str(site): rows for site, rows in table.groupby(table[STAY].map(site_of_stay), sort=True)}
        for table in (tables.patient, tables.diagnosis, tables.medication, tables.physical_exam)
    )
    return {
        site: replace(
            tables,
            patient=rows,
            diagnosis=diagnosis.get(site, tables.diagnosis.iloc[:0]),
            medication=medication.get(site, tables.medication.iloc[:0]),
            physical_exam=physical_exam.get(site, tables.physical_exam.iloc[:0]),
            dropped=(),
        )
        for site, rows in patient.items()
    }


def _find_files(folder: Path, table: str) -> list[Path]:
    if not folder.is_dir():
        raise DataError(folder.name, (f"the folder {folder.name} does not exist",), hint=_SOURCE_HINT)
    wanted = {f"{table.lower()}.csv", f"{table.lower()}.csv.gz"}
    return sorted(file for file in folder.iterdir() if file.name.lower() in wanted)


def _header(file: Path, site: str) -> dict[str, str]:
    """The file's columns: lower-case name → name as written."""
    try:
        columns = pd.read_csv(file, nrows=0).columns
    except _UNREADABLE:
        raise _unreadable(site, file) from None
    return {str(column).strip().lower(): str(column) for column in columns}


def _read(file: Path, header: Mapping[str, str], shape: _TableShape, site: str) -> pd.DataFrame:
    """The columns of the shape, in pieces so that the full database fits in memory."""
    written = {header[column]: column for column in shape.columns}
    pieces: list[pd.DataFrame] = []
    try:
        with pd.read_csv(
            file,
            usecols=list(written),
            dtype=str,
            keep_default_na=False,  # a drug may be called "NA"
            na_values=[""],
            chunksize=_ROWS_AT_A_TIME,
        ) as reader:
            pieces.extend(_parsed(rows.rename(columns=written), shape) for rows in reader)
    except _UNREADABLE:
        raise _unreadable(site, file) from None
    return pd.concat(pieces, ignore_index=True)


def _unreadable(site: str, file: Path) -> DataError:
    """The reader's own error is not quoted: it may hold a patient's value."""
    return DataError(site, (f"{file.name} cannot be read as CSV",), hint=_SOURCE_HINT)


def _parsed(rows: pd.DataFrame, shape: _TableShape) -> pd.DataFrame:
    for column in (*shape.numbers, *((shape.key,) if shape is _PATIENT else ())):
        rows[column] = pd.to_numeric(rows[column], errors="coerce")
    return _measurements(rows) if shape is _PHYSICAL_EXAM else rows


def _measurements(exam: pd.DataFrame) -> pd.DataFrame:
    """Only the records of the seven measurements, each with its name and its reading."""
    parts = exam["physicalexampath"].str.rsplit("/", n=2)
    parent, name, last = parts.str[-3], parts.str[-2], parts.str[-1]
    in_vitals = exam["physicalexampath"].str.contains("Vital Sign", regex=False, na=False)
    gcs = name.map(GCS_PARTS).where(parent.str.endswith("/GCS", na=False))
    vital = last.map(VITAL_PARTS).where(in_vitals)
    measured = exam.assign(
        measurement=gcs.where(gcs.notna(), vital), reading=exam["physicalexamtext"].where(gcs.isna(), last)
    )
    return measured.dropna(subset=["measurement"]).drop(columns=["physicalexampath", "physicalexamtext"])


def _checked_patients(patient: pd.DataFrame, site: str) -> pd.DataFrame:
    problems = [
        f"table patient: column {column} is empty or unreadable in {missing} rows"
        for column in (STAY, PATIENT, HOSPITAL)
        if (missing := int(patient[column].isna().sum()))
    ]
    repeated = int(patient[STAY].dropna().duplicated().sum())
    if repeated:
        problems.append(f"table patient: {repeated} rows repeat a {STAY}")
    if patient.empty:
        problems.append("table patient has no rows")
    if problems:
        raise DataError(
            site, tuple(problems), hint="each row of patient is one stay; take the table unchanged"
        )
    checked = patient.astype({STAY: "int64"})
    checked[HOSPITAL] = checked[HOSPITAL].str.strip()
    return checked.sort_values(STAY, ignore_index=True)


def _checked_hospitals(hospital: pd.DataFrame, site: str) -> pd.DataFrame:
    checked = hospital.copy()
    for column in (HOSPITAL, "region"):
        checked[column] = checked[column].str.strip()
    repeated = int(checked[HOSPITAL].duplicated().sum())
    if repeated:
        raise DataError(
            site,
            (f"table hospital: {repeated} rows repeat a {HOSPITAL}",),
            hint="each row of hospital is one hospital; take the table unchanged",
        )
    return checked


def _placed(
    records: pd.DataFrame, shape: _TableShape, stays: pd.Index[int], dropped: list[Exclusion]
) -> pd.DataFrame:
    """The records with a readable stay and time, a key of their own and a stay that exists."""
    faults: tuple[tuple[str, Callable[[pd.DataFrame], pd.Series[bool]]], ...] = (
        ("no readable stay or time", lambda rows: rows[list(shape.numbers)].isna().any(axis=1)),
        (f"a repeated {shape.key}", lambda rows: rows[shape.key].duplicated()),
        ("a stay that is not in table patient", lambda rows: ~rows[STAY].isin(stays)),
    )
    kept = records
    for fault, find in faults:
        bad = find(kept)
        if bad.any():
            dropped.append(Exclusion(reason=f"{shape.name}: {fault}", rows=int(bad.sum())))
            kept = kept[~bad]
    return kept.astype({STAY: "int64"}).reset_index(drop=True)
