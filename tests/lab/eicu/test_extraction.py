"""The eICU loader on invented tables, and on PhysioNet's demo where it is at hand."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.errors import DataError
from fedmap_lab.eicu.extraction import (
    EicuRules,
    EicuStays,
    age_in_years,
    diagnoses,
    drug_orders,
    drug_terms,
    extract_stays,
    physiology,
    wide_table,
)
from fedmap_lab.eicu.tables import PHYSIOLOGY, EicuTables, load_eicu_tables, split_by_site
from fedmap_lab.eicu.vocabulary import Vocabulary
from tests.lab.eicu.ward import GCS, VITALS, Ward

DEMO = Path(os.environ.get("FEDMAP_DATA", Path(__file__).parents[4] / "shared" / "data")) / "eicu_demo"


def counts(entries: tuple[object, ...]) -> dict[str, int]:
    return {str(getattr(entry, "reason")): int(getattr(entry, "rows")) for entry in entries}  # noqa: B009


def ids(stays: EicuStays) -> list[int]:
    return [int(stay) for stay in stays.stays["patientunitstayid"]]


def test_a_complete_stay_becomes_one_row_with_its_outcome(tmp_path: Path) -> None:
    found = Ward().stay(7).stay(8, status="Expired").extract(tmp_path)
    assert list(found.stays.columns) == ["patientunitstayid", "uniquepid", *PHYSIOLOGY, "died"]
    assert found.stays["died"].tolist() == [0, 1]
    assert found.stays[list(PHYSIOLOGY)].to_numpy()[0].tolist() == [4, 6, 5, 80, 120, 16, 97]
    assert found.exclusions == ()


def test_each_dropped_stay_is_counted_once_under_the_first_rule_it_fails(tmp_path: Path) -> None:
    ward = Ward().stay(1).stay(2, status=None, exam=False).stay(3, age=None, orders=0).stay(4, exam=False)
    ward.stay(5, orders=3, codes=0).stay(6, codes=2).stay(7, status="Expired", left=2880)
    found = ward.extract(tmp_path)
    assert ids(found) == [1]
    assert counts(found.exclusions) == {
        "no discharge status": 1,
        "age, height or weight is missing": 1,
        "not all seven physiology measurements": 1,
        "fewer than 4 drug orders": 1,
        "fewer than 3 diagnoses": 1,
        "died inside the window": 1,
    }


def test_age_above_89_counts_as_present_and_other_text_does_not(tmp_path: Path) -> None:
    found = Ward().stay(1, age="> 89").stay(2, age="old").stay(3, age="").extract(tmp_path)
    assert ids(found) == [1]
    assert age_in_years(pd.Series(["> 89", "61", "?"])).fillna(-1).tolist() == [90, 61, -1]


def test_a_height_or_weight_that_is_no_number_above_zero_is_missing(tmp_path: Path) -> None:
    ward = Ward().stay(1).stay(2).stay(3)
    ward.rows["patient"][1] = (2, "p2", 1, "60", "tall", "70", 5000, "Alive", "Male")
    ward.rows["patient"][2] = (3, "p3", 1, "60", "170", "0", 5000, "Alive", "Male")
    assert counts(ward.extract(tmp_path).exclusions) == {"age, height or weight is missing": 2}


def test_a_diagnosis_after_the_window_is_no_feature(tmp_path: Path) -> None:
    ward = Ward().stay(1).diagnosis(1, "427.5, I46.9", offset=2881).diagnosis(1, "518.81", offset=2880)
    ours = ward.extract(tmp_path / "a")
    assert "dx_427.5" not in set(ours.occurrences["term"])
    assert "dx_518.8" in set(ours.occurrences["term"])
    assert counts(ours.unused_records)["diagnosis: after the window"] == 1
    published = ward.extract(tmp_path / "b", EicuRules.published())
    assert "dx_427.5" in set(published.occurrences["term"])


def test_late_diagnoses_cannot_make_a_stay_complete(tmp_path: Path) -> None:
    ward = Ward().stay(1, codes=2).diagnosis(1, "486", offset=9000)
    assert ids(ward.extract(tmp_path / "a")) == []
    assert ids(ward.extract(tmp_path / "b", EicuRules.published())) == [1]


def test_a_death_inside_the_window_is_excluded_and_a_later_one_is_not(tmp_path: Path) -> None:
    ward = Ward().stay(1, status="Expired", left=2880).stay(2, status="Expired", left=2881)
    assert ids(ward.extract(tmp_path / "a")) == [2]
    assert ids(ward.extract(tmp_path / "b", EicuRules.published())) == [1, 2]


def test_stays_that_end_alive_inside_the_window_can_be_left_out(tmp_path: Path) -> None:
    ward = Ward().stay(1, left=600).stay(2)
    assert ids(ward.extract(tmp_path / "a")) == [1, 2]
    strict = ward.extract(tmp_path / "b", EicuRules(only_stays_beyond_window=True))
    assert ids(strict) == [2]
    assert counts(strict.exclusions) == {"left the unit inside the window": 1}


def test_cancelled_late_and_nameless_orders_do_not_count(tmp_path: Path) -> None:
    ward = Ward().stay(1, orders=3)
    ward.order(1, "A", cancelled="Yes").order(1, "B", start=2881).order(1, None).order(1, " - ")
    found = ward.extract(tmp_path)
    assert counts(found.exclusions) == {"fewer than 4 drug orders": 1}
    assert counts(found.unused_records) == {
        "medication: cancelled": 1,
        "medication: after the window": 1,
        "medication: no drug name": 2,
    }


def test_an_order_entered_after_the_window_is_no_feature_even_if_dated_back(tmp_path: Path) -> None:
    ward = Ward().stay(1).order(1, "Comfort care", start=100, entered=4000)
    assert "drug_comfort_care" not in set(ward.extract(tmp_path / "a").occurrences["term"])
    published = ward.extract(tmp_path / "b", EicuRules.published())
    assert "drug_comfort_care" in set(published.occurrences["term"])


def test_records_from_before_the_stay_are_used_and_counted(tmp_path: Path) -> None:
    ward = Ward().stay(1).order(1, "Home drug", start=-600).diagnosis(1, "250.00", offset=-5)
    ward.exam(1, f"{VITALS}/HR/HR Current", "100", offset=-1)
    found = ward.extract(tmp_path)
    assert {"drug_home_drug", "dx_250.0"} <= set(found.occurrences["term"])
    assert found.stays.loc[0, "heart_rate"] == 90
    assert len(found.notes) == 3


def test_physiology_is_the_mean_of_current_values_inside_the_window(tmp_path: Path) -> None:
    ward = Ward().stay(1)
    ward.exam(1, f"{VITALS}/HR/HR Current", "100").exam(1, f"{VITALS}/HR/HR Current", "300", offset=2881)
    ward.exam(1, f"{VITALS}/HR/HR Highest", "190").exam(1, f"{VITALS}/HR/HR Lowest", "20")
    ward.exam(1, f"{VITALS}/Vent Rate/Vent Rate Current", "14")
    ward.exam(1, f"{GCS}/Eyes Score/2", "2").exam(1, f"{GCS}/Score/scored", "scored").exam(
        1, f"{GCS}/15", "15"
    )
    row = ward.extract(tmp_path).stays.loc[0]
    assert (row["heart_rate"], row["gcs_eyes"], row["respiration"]) == (90, 3, 16)


def test_the_coma_score_is_taken_from_the_path(tmp_path: Path) -> None:
    ward = Ward().stay(1).exam(1, f"{GCS}/Verbal Score/1", "not assessed")
    assert ward.extract(tmp_path).stays.loc[0, "gcs_verbal"] == 3


def test_text_and_impossible_readings_are_left_out_of_the_mean_and_counted(tmp_path: Path) -> None:
    ward = Ward().stay(1)
    ward.exam(1, f"{VITALS}/HR/HR Current", "irregular").exam(1, f"{VITALS}/HR/HR Current", "0")
    ours = ward.extract(tmp_path / "a")
    assert ours.stays.loc[0, "heart_rate"] == 80
    assert counts(ours.unused_records) == {
        "physicalExam: the reading is not a number": 1,
        "physicalExam: the reading is outside its plausible range": 1,
    }
    published = ward.extract(tmp_path / "b", EicuRules.published())
    assert published.stays.loc[0, "heart_rate"] == 40


@pytest.mark.parametrize(
    ("code", "ours", "published"),
    [
        ("518.81, J96.00", "dx_518.8", "dx_518.8"),
        ("486, J18.9", "dx_486", "dx_486"),
        ("V62.84, R45.851", "dx_V62.8", None),
        ("E980.2, 965.00", "dx_E980", None),
        ("E87.1", None, None),
        ("S22.4", None, None),
        ("31.1", None, "dx_31.1"),
        ("", None, None),
    ],
)
def test_only_icd9_codes_become_terms(
    tmp_path: Path, code: str, ours: str | None, published: str | None
) -> None:
    tables = Ward().stay(1, codes=0).diagnosis(1, code).load(tmp_path)
    for rules, expected in ((EicuRules(), ours), (EicuRules.published(), published)):
        found = diagnoses(tables, rules)
        assert found.frame["term"].tolist() == ([expected] if expected else [])
        assert counts(found.unused) == ({} if expected else {"diagnosis: no ICD-9 code": 1})


def test_spellings_of_one_drug_are_one_term() -> None:
    names = pd.Series(["NaCl 0.9% MBP", "nacl  0.9 %  mbp", "Dextrosé", "NA", None, "%"])
    terms = drug_terms(names)
    assert terms.tolist()[:4] == ["drug_nacl_0_9_mbp", "drug_nacl_0_9_mbp", "drug_dextrose", "drug_na"]
    assert terms.isna().tolist()[4:] == [True, True]


@settings(max_examples=40)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=10))
def test_any_drug_name_gives_a_plain_term_or_none(names: list[str]) -> None:
    terms = drug_terms(pd.Series(names, dtype=object))
    assert len(terms) == len(names)
    assert terms.dropna().str.fullmatch(r"drug_[a-z0-9]+(_[a-z0-9]+)*").all()


def test_stays_of_one_patient_keep_one_patient_id(tmp_path: Path) -> None:
    found = Ward().stay(1, patient="a").stay(2, patient="a").stay(3, patient="b").extract(tmp_path)
    assert found.stays["uniquepid"].tolist() == ["a", "a", "b"]
    assert found.occurrences.groupby("stay")["patient"].nunique().tolist() == [1, 1, 1]


def test_records_that_cannot_be_placed_are_dropped_and_counted(tmp_path: Path) -> None:
    ward = Ward().stay(1).order(1, "A", start="soon").order(99, "B").diagnosis(1, "486")
    ward.rows["diagnosis"].append(ward.rows["diagnosis"][-1])
    tables = ward.load(tmp_path)
    assert counts(tables.dropped) == {
        "diagnosis: a repeated diagnosisid": 1,
        "medication: no readable stay or time": 1,
        "medication: a stay that is not in table patient": 1,
    }
    assert len(tables.medication) == 4


def test_a_missing_table_and_a_missing_column_are_named_together(tmp_path: Path) -> None:
    Ward().stay(1).write(tmp_path)
    (tmp_path / "medication.csv.gz").unlink()
    pd.DataFrame({"diagnosisid": [1]}).to_csv(tmp_path / "diagnosis.csv.gz", index=False)
    with pytest.raises(DataError) as caught:
        load_eicu_tables(tmp_path)
    assert caught.value.problems == (
        "table medication is missing",
        "table diagnosis: column patientunitstayid is missing",
        "table diagnosis: column diagnosisoffset is missing",
        "table diagnosis: column icd9code is missing",
    )
    assert "PhysioNet" in caught.value.hint


def test_plain_csv_and_names_in_any_case_are_read(tmp_path: Path) -> None:
    Ward().stay(1).write(tmp_path)
    packed = tmp_path / "physicalExam.csv.gz"
    text = gzip.decompress(packed.read_bytes()).decode()
    packed.unlink()
    header, rest = text.split("\n", 1)
    (tmp_path / "PHYSICALEXAM.CSV").write_text(header.upper() + "\n" + rest)
    assert ids(extract_stays(load_eicu_tables(tmp_path), EicuRules())) == [1]


def test_a_table_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    Ward().stay(1).write(tmp_path)
    (tmp_path / "patient.csv").write_text("patientunitstayid\n1\n")
    with pytest.raises(DataError, match="table patient is there 2 times"):
        load_eicu_tables(tmp_path)


def test_a_cut_gzip_file_is_refused_by_name(tmp_path: Path) -> None:
    Ward().stay(1).write(tmp_path)
    file = tmp_path / "medication.csv.gz"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match=r"medication\.csv\.gz cannot be read as CSV"):
        load_eicu_tables(tmp_path)


def test_a_folder_that_does_not_exist_is_refused_with_the_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist") as caught:
        load_eicu_tables(tmp_path / "nowhere")
    assert "PhysioNet" in caught.value.hint


def test_a_repeated_stay_is_refused_without_naming_it(tmp_path: Path) -> None:
    ward = Ward().stay(4711)
    ward.rows["patient"].append(ward.rows["patient"][0])
    with pytest.raises(DataError, match="1 rows repeat a patientunitstayid") as caught:
        ward.load(tmp_path)
    assert "4711" not in str(caught.value)


def test_a_stay_without_patient_or_hospital_is_refused_by_column(tmp_path: Path) -> None:
    ward = Ward().stay(1)
    ward.rows["patient"].append((2, None, None, "60", "170", "70", 5000, "Alive", "Male"))
    with pytest.raises(DataError) as caught:
        ward.load(tmp_path)
    assert caught.value.problems == (
        "table patient: column uniquepid is empty or unreadable in 1 rows",
        "table patient: column hospitalid is empty or unreadable in 1 rows",
    )


def test_tables_with_a_header_and_no_records_give_no_stays(tmp_path: Path) -> None:
    found = Ward().stay(1, orders=0, codes=0, exam=False).extract(tmp_path)
    assert ids(found) == []
    assert counts(found.exclusions) == {"not all seven physiology measurements": 1}


def test_a_site_holds_only_its_own_stays(tmp_path: Path) -> None:
    ward = Ward().stay(1, hospital=73).stay(2, hospital=9).stay(3, hospital=420)
    ward.rows["hospital"] += [(73, "Midwest"), (9, "West"), (420, None)]
    tables = ward.load(tmp_path)
    by_hospital = split_by_site(tables, "hospital")
    assert list(by_hospital) == ["hospital_009", "hospital_073", "hospital_420"]
    by_region = split_by_site(tables, "region")
    assert {site: own.patient["patientunitstayid"].tolist() for site, own in by_region.items()} == {
        "midwest": [1],
        "unknown": [3],
        "west": [2],
    }
    west = by_region["west"]
    assert set(west.medication["patientunitstayid"]) == {2}
    assert set(west.diagnosis["patientunitstayid"]) == {2}
    assert set(west.physical_exam["patientunitstayid"]) == {2}


def test_the_wide_table_has_counts_in_the_vocabularys_order(tmp_path: Path) -> None:
    found = Ward().stay(1).order(1, "drug 1").stay(2).extract(tmp_path)
    wide = wide_table(found, Vocabulary(("drug_drug_1", "drug_drug_3", "drug_other", "dx_400.9"), 5, 1))
    assert list(wide.frame.columns) == [
        "patientunitstayid",
        "uniquepid",
        "drug_drug_1",
        "drug_drug_3",
        "drug_other",
        "dx_400.9",
        *PHYSIOLOGY,
        "died",
    ]
    assert wide.frame.iloc[:, 2:6].to_numpy().tolist() == [[2, 1, 0, 1], [1, 1, 0, 1]]
    assert (wide.unknown_terms, wide.unknown_occurrences) == (4, 8)


def test_the_published_rules_differ_only_where_they_leak_or_read_otherwise() -> None:
    ours, published = EicuRules(), EicuRules.published()
    assert published == replace(
        ours,
        limit_diagnoses_to_window=False,
        limit_orders_to_window=False,
        exclude_deaths_in_window=False,
        supplementary_codes=False,
        drop_implausible_readings=False,
    )


@pytest.fixture(scope="module")
def demo() -> EicuTables:
    if not DEMO.is_dir():
        pytest.skip("the eICU demo tables are not here; set FEDMAP_DATA to the folder that has eicu_demo")
    return load_eicu_tables(DEMO)


@pytest.mark.real_data
def test_demo_has_485_complete_stays_under_the_published_rules(demo: EicuTables) -> None:
    found = extract_stays(demo, EicuRules.published())
    assert len(found.stays) == 485
    assert int(found.stays["died"].sum()) == 38
    assert len(found.stays) + sum(counts(found.exclusions).values()) == len(demo.patient) == 2520


@pytest.mark.real_data
def test_demo_has_461_complete_stays_under_our_rules(demo: EicuTables) -> None:
    found = extract_stays(demo, EicuRules())
    assert (len(found.stays), int(found.stays["died"].sum())) == (461, 22)
    assert counts(found.exclusions)["died inside the window"] == 13


@pytest.mark.real_data
def test_demo_stays_are_where_the_hospital_table_says(demo: EicuTables) -> None:
    sites = split_by_site(demo, "region")
    stays = {site: len(own.patient) for site, own in sites.items()}
    assert stays == {"midwest": 807, "northeast": 159, "south": 738, "unknown": 210, "west": 606}
    kept = {site: len(extract_stays(own, EicuRules()).stays) for site, own in sites.items()}
    assert kept == {"midwest": 189, "northeast": 53, "south": 128, "unknown": 34, "west": 57}


@pytest.mark.real_data
def test_demo_features_do_not_change_when_the_future_is_erased(demo: EicuTables) -> None:
    """What was written after the window must not matter: without it the same stays have the same features."""
    window = EicuRules().window_minutes
    blind = replace(
        demo,
        diagnosis=demo.diagnosis[demo.diagnosis["diagnosisoffset"] <= window],
        medication=demo.medication[demo.medication["drugorderoffset"] <= window],
        physical_exam=demo.physical_exam[demo.physical_exam["physicalexamoffset"] <= window],
    )
    seen, unseen = extract_stays(demo, EicuRules()), extract_stays(blind, EicuRules())
    pd.testing.assert_frame_equal(seen.stays, unseen.stays)
    pd.testing.assert_frame_equal(seen.occurrences, unseen.occurrences)
    leaky = extract_stays(demo, EicuRules.published())
    leaky_blind = extract_stays(blind, EicuRules.published())
    assert len(leaky_blind.occurrences) < len(leaky.occurrences)


@pytest.mark.real_data
def test_demo_physiology_lies_within_what_a_bedside_can_show(demo: EicuTables) -> None:
    means = physiology(demo, EicuRules()).frame
    assert means["gcs_eyes"].between(1, 4).all()
    assert means["o2_saturation"].between(10, 100).all()
    assert len(drug_orders(demo, EicuRules()).frame) > 30_000
