"""From raw eICU tables to one row per ICU stay: physiology, drugs, diagnoses and the outcome.

The rules are a frozen value. `EicuRules()` are this project's: nothing that was written down after the
first 48 hours is a feature, and a stay that ended in death before then is no example. `EicuRules.published()`
are the published study's, for comparison only. docs/eicu-loader.md says where the two differ and why.

This module does not scale or split, and does not choose which drugs and codes become columns: that is the
study plan's and the vocabulary's part. A patient's stays share one `uniquepid`; splits go by it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fedmap.data.table.site_dataset import Exclusion
from fedmap_lab.eicu.tables import PATIENT, PHYSIOLOGY, STAY, EicuTables
from fedmap_lab.eicu.vocabulary import Vocabulary, encode

DRUG_PREFIX = "drug_"
DIAGNOSIS_PREFIX = "dx_"
OUTCOME = "died"
_CODE_LENGTH = 5  # "518.81" and "518.82" are both 518.8

# Limits of what a bedside reading can be; a 0 here is "not measured", written as a number.
_PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "gcs_eyes": (1, 4),
    "gcs_motor": (1, 6),
    "gcs_verbal": (1, 5),
    "heart_rate": (10, 300),
    "systolic_bp": (20, 300),
    "respiration": (1, 120),
    "o2_saturation": (10, 100),
}
_ANY_NUMBER_CODE = r"\d+(?:\.\d+)?"
_ICD9_CODE = r"(?:\d{3}|V\d{2}|E\d{3})(?:\.\d{1,2})?"  # V and E codes are ICD-9 too; "E87.1" is ICD-10


@dataclass(frozen=True)
class EicuRules:
    """Which stays and records count. The defaults close the leaks of the published rules."""

    window_minutes: int = 2880
    least_drug_orders: int = 4
    least_diagnoses: int = 3
    limit_diagnoses_to_window: bool = True
    limit_orders_to_window: bool = True
    """Leave out orders entered after the window, even where their start is dated back into it."""
    exclude_deaths_in_window: bool = True
    only_stays_beyond_window: bool = False
    """Keep only patients who are still in the unit when the window ends."""
    supplementary_codes: bool = True
    """Count ICD-9 V and E codes; without them every code whose first part is a number, and no other."""
    drop_implausible_readings: bool = True

    @classmethod
    def published(cls) -> EicuRules:
        """The published study's rules: diagnoses of the whole stay, deaths in the window kept."""
        return cls(
            limit_diagnoses_to_window=False,
            limit_orders_to_window=False,
            exclude_deaths_in_window=False,
            supplementary_codes=False,
            drop_implausible_readings=False,
        )


@dataclass(frozen=True, eq=False)
class SelectedRecords:
    """The records of one table that count as features, and those that do not."""

    frame: pd.DataFrame
    unused: tuple[Exclusion, ...]
    before_admission: int  # records that count although they are older than the stay


@dataclass(frozen=True, eq=False)
class EicuStays:
    """The complete stays of a site. `stays` has one row per stay; the other two one row per record."""

    stays: pd.DataFrame  # patientunitstayid, uniquepid, the seven of PHYSIOLOGY, died
    occurrences: pd.DataFrame  # stay, patient, term: drugs and diagnoses of these stays
    exclusions: tuple[Exclusion, ...]  # stays, each under the first rule that drops it
    unused_records: tuple[Exclusion, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class WideStays:
    """The table a model is trained on."""

    frame: pd.DataFrame
    unknown_terms: int
    unknown_occurrences: int


def extract_stays(tables: EicuTables, rules: EicuRules) -> EicuStays:
    """Apply the rules to one site's tables."""
    patient = tables.patient.set_index(STAY)
    readings, orders, codes = physiology(tables, rules), drug_orders(tables, rules), diagnoses(tables, rules)
    means = readings.frame
    died = patient["unitdischargestatus"].str.strip().map({"Alive": 0, "Expired": 1})
    left = pd.to_numeric(patient["unitdischargeoffset"], errors="coerce")
    in_unit_after_window = left > rules.window_minutes
    demographics = _demographics_present(patient)
    wanted = [
        ("no discharge status", died.notna()),
        ("age, height or weight is missing", demographics),
        ("not all seven physiology measurements", patient.index.to_series().isin(means.index)),
        (
            f"fewer than {rules.least_drug_orders} drug orders",
            _records_per_stay(orders.frame, patient.index) >= rules.least_drug_orders,
        ),
        (
            f"fewer than {rules.least_diagnoses} diagnoses",
            _records_per_stay(codes.frame, patient.index) >= rules.least_diagnoses,
        ),
    ]
    if rules.exclude_deaths_in_window:
        wanted.append(("died inside the window", (died != 1) | in_unit_after_window))
    if rules.only_stays_beyond_window:
        wanted.append(("left the unit inside the window", in_unit_after_window))
    kept, exclusions = _apply(wanted)

    stays = means.loc[kept].assign(
        **{PATIENT: patient.loc[kept, PATIENT], OUTCOME: died.loc[kept].astype("int64")}
    )
    records = pd.concat([orders.frame, codes.frame], ignore_index=True)
    occurrences = records[records["stay"].isin(kept)].reset_index(drop=True)
    occurrences.insert(1, "patient", occurrences["stay"].map(patient[PATIENT]))
    before = (
        ("physicalExam", readings.before_admission),
        ("medication", orders.before_admission),
        ("diagnosis", codes.before_admission),
    )
    return EicuStays(
        stays=stays.rename_axis(STAY).reset_index()[[STAY, PATIENT, *PHYSIOLOGY, OUTCOME]],
        occurrences=occurrences,
        exclusions=exclusions,
        unused_records=(*tables.dropped, *readings.unused, *orders.unused, *codes.unused),
        notes=tuple(
            f"{table}: {count} records from before the stay began are used"
            for table, count in before
            if count
        ),
    )


def physiology(tables: EicuTables, rules: EicuRules) -> SelectedRecords:
    """The mean of each measurement over the window, for the stays that have all seven."""
    exam = tables.physical_exam.assign(
        reading=pd.to_numeric(tables.physical_exam["reading"], errors="coerce")
    )
    unused: list[Exclusion] = []
    exam = _drop(
        exam, exam["physicalexamoffset"] > rules.window_minutes, "physicalExam: after the window", unused
    )
    exam = _drop(exam, exam["reading"].isna(), "physicalExam: the reading is not a number", unused)
    if rules.drop_implausible_readings:
        low = exam["measurement"].map({name: limits[0] for name, limits in _PLAUSIBLE.items()})
        high = exam["measurement"].map({name: limits[1] for name, limits in _PLAUSIBLE.items()})
        outside = ~exam["reading"].between(low, high)
        exam = _drop(exam, outside, "physicalExam: the reading is outside its plausible range", unused)
    means = exam.pivot_table(index=STAY, columns="measurement", values="reading", aggfunc="mean")
    complete = means.reindex(columns=list(PHYSIOLOGY)).dropna().rename_axis(columns=None)
    return SelectedRecords(complete, tuple(unused), int((exam["physicalexamoffset"] < 0).sum()))


def drug_orders(tables: EicuTables, rules: EicuRules) -> SelectedRecords:
    """One row (stay, term) per drug order that was not cancelled and starts by the end of the window."""
    orders = tables.medication.assign(term=drug_terms(tables.medication["drugname"]))
    unused: list[Exclusion] = []
    cancelled = orders["drugordercancelled"].str.strip().str.lower() != "no"
    orders = _drop(orders, cancelled, "medication: cancelled", unused)
    orders = _drop(
        orders, orders["drugstartoffset"] > rules.window_minutes, "medication: after the window", unused
    )
    if rules.limit_orders_to_window:
        late = orders["drugorderoffset"] > rules.window_minutes
        orders = _drop(orders, late, "medication: entered after the window, dated back", unused)
    orders = _drop(orders, orders["term"].isna(), "medication: no drug name", unused)
    before = int((orders["drugstartoffset"] < 0).sum())
    return SelectedRecords(_stay_and_term(orders), tuple(unused), before)


def diagnoses(tables: EicuTables, rules: EicuRules) -> SelectedRecords:
    """One row (stay, term) per diagnosis record: the first part of the code, cut to five characters."""
    first = tables.diagnosis["icd9code"].str.split(",").str[0].str.strip()
    valid = first.str.fullmatch(_ICD9_CODE if rules.supplementary_codes else _ANY_NUMBER_CODE, na=False)
    codes = first.str[:_CODE_LENGTH].str.rstrip(".").where(valid)
    records = tables.diagnosis.assign(term=DIAGNOSIS_PREFIX + codes)
    unused: list[Exclusion] = []
    if rules.limit_diagnoses_to_window:
        late = records["diagnosisoffset"] > rules.window_minutes
        records = _drop(records, late, "diagnosis: after the window", unused)
    records = _drop(records, records["term"].isna(), "diagnosis: no ICD-9 code", unused)
    return SelectedRecords(
        _stay_and_term(records), tuple(unused), int((records["diagnosisoffset"] < 0).sum())
    )


def wide_table(stays: EicuStays, vocabulary: Vocabulary) -> WideStays:
    """Stay and patient, a count per term in the vocabulary's order, the seven measurements, the outcome."""
    encoded = encode(stays.occurrences, stays.stays[STAY].tolist(), vocabulary)
    by_stay = stays.stays.set_index(STAY)
    frame = pd.concat([by_stay[[PATIENT]], encoded.frame, by_stay[[*PHYSIOLOGY, OUTCOME]]], axis=1)
    return WideStays(
        frame.rename_axis(STAY).reset_index(), encoded.unknown_terms, encoded.unknown_occurrences
    )


def drug_terms(names: pd.Series[str]) -> pd.Series[str]:
    """Drug names as terms: no accents, lower case, one `_` for whatever is no letter or digit.

    Spellings that differ only in case, spaces or punctuation become one term; doses stay part of the name.
    """
    distinct = pd.Series(names.dropna().unique(), dtype=object)
    plain = distinct.map(lambda name: unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode())
    slugs = plain.str.lower().str.replace(r"[^a-z0-9]+", "_", regex=True).str.strip("_")
    terms = (DRUG_PREFIX + slugs).where(slugs != "")
    return names.map(pd.Series(terms.to_numpy(), index=distinct.to_numpy()))


def age_in_years(age: pd.Series[str]) -> pd.Series[float]:
    """Age as a number; eICU writes everyone above 89 as "> 89", taken as 90."""
    text = age.str.strip()
    return pd.to_numeric(text.where(text != "> 89", "90"), errors="coerce")


def _demographics_present(patient: pd.DataFrame) -> pd.Series[bool]:
    height, weight = (
        pd.to_numeric(patient[column], errors="coerce") for column in ("admissionheight", "admissionweight")
    )
    return age_in_years(patient["age"]).notna() & (height > 0) & (weight > 0)


def _records_per_stay(records: pd.DataFrame, stays: pd.Index[int]) -> pd.Series[int]:
    return records["stay"].value_counts().reindex(stays, fill_value=0)


def _apply(wanted: list[tuple[str, pd.Series[bool]]]) -> tuple[pd.Index[int], tuple[Exclusion, ...]]:
    """The stays that meet every rule; each of the others is counted once, under the first it fails."""
    kept = wanted[0][1].index
    exclusions: list[Exclusion] = []
    for reason, meets in wanted:
        passing = kept[meets.loc[kept].to_numpy()]
        if len(passing) < len(kept):
            exclusions.append(Exclusion(reason=reason, rows=len(kept) - len(passing)))
        kept = passing
    return kept, tuple(exclusions)


def _drop(records: pd.DataFrame, bad: pd.Series[bool], reason: str, unused: list[Exclusion]) -> pd.DataFrame:
    if not bad.any():
        return records
    unused.append(Exclusion(reason=reason, rows=int(bad.sum())))
    return records[~bad]


def _stay_and_term(records: pd.DataFrame) -> pd.DataFrame:
    return records[[STAY, "term"]].rename(columns={STAY: "stay"}).reset_index(drop=True)
