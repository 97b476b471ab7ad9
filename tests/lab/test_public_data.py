"""Public files as cohort directories, on invented rows, and on the real files where they are at hand."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pandas as pd
import pytest

from fedmap.data.loading import load_site
from fedmap.errors import DataError, FedmapError
from fedmap.study.plan.reading import load_plan
from fedmap_lab.cohorts.public_data import ImportSummary, import_eicu, import_tcga_brca, import_uci_heart
from fedmap_lab.eicu.extraction import EicuRules
from fedmap_lab.eicu.tables import PHYSIOLOGY
from tests.lab.eicu.ward import Ward

PROJECT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FEDMAP_DATA", PROJECT.parent / "shared" / "data"))
HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")


def write_heart(folder: Path, sites: list[int], folds: list[str] | None = None) -> Path:
    frame = pd.DataFrame({column: range(len(sites)) for column in HEART})
    frame["num"], frame["site"], frame["fold"], frame["y"] = 1, sites, folds or ["train"] * len(sites), 1
    frame.to_csv(folder / "flamby_split_740.csv", index=False)
    return folder


def write_brca(folder: Path, pids: list[str], folds: list[tuple[str, str]]) -> Path:
    pd.DataFrame({"pid": pids, "age, at index": 50, "E": 0.0, "T": range(len(pids))}).to_csv(
        folder / "brca.csv", index=False
    )
    pd.DataFrame(folds, columns=["pid", "fold2"]).assign(fold="train").to_csv(
        folder / "train_test_split.csv", index=False
    )
    return folder


def write_eicu(folder: Path, hospitals: dict[int, str | None], *stays: int) -> Path:
    """Each hospital has this many complete stays, all with the same drugs, and one drug of its own."""
    ward = Ward()
    for (hospital, region), count in zip(hospitals.items(), cycle(stays), strict=False):
        ward.hospital(hospital, region)
        for stay in range(1000 * hospital, 1000 * hospital + count):
            ward.stay(stay, hospital=hospital, orders=3).order(stay, f"Local {hospital}")
    return ward.write(folder)


def rows_of(summary: ImportSummary) -> dict[str, int]:
    return {site.site: site.rows for site in summary.sites}


def test_heart_rows_go_to_the_hospital_of_their_site_number(tmp_path: Path) -> None:
    summary = import_uci_heart(write_heart(tmp_path, [0, 0, 1, 2, 3]), tmp_path / "out")
    assert rows_of(summary) == {"cleveland": 2, "hungary": 1, "switzerland": 1, "va": 1}
    sites = pd.read_csv(tmp_path / "out" / "sites.csv")
    assert sites["region"].tolist() == ["US", "Hungary", "Switzerland", "US"]
    assert sites["tier"].tolist() == [1, 1, 1, 1]
    cleveland = pd.read_csv(tmp_path / "out" / "cleveland.csv")
    assert list(cleveland.columns) == [*HEART, "num", "fold"]


def test_a_site_can_be_given_another_tier(tmp_path: Path) -> None:
    source = write_heart(tmp_path, [0, 1, 2, 3])
    import_uci_heart(source, tmp_path / "out", tiers={"va": 3, "switzerland": 2})
    sites = pd.read_csv(tmp_path / "out" / "sites.csv", index_col="site")
    assert sites["tier"].to_dict() == {"cleveland": 1, "hungary": 1, "switzerland": 2, "va": 3}


@pytest.mark.parametrize("tiers", [{"paris": 1}, {"va": 4}])
def test_an_unknown_site_or_tier_is_refused(tmp_path: Path, tiers: dict[str, int]) -> None:
    with pytest.raises(FedmapError, match="cannot be"):
        import_uci_heart(write_heart(tmp_path, [0, 1, 2, 3]), tmp_path / "out", tiers=tiers)
    assert not (tmp_path / "out").exists()


def test_rows_of_an_unknown_hospital_or_fold_are_refused_by_count(tmp_path: Path) -> None:
    source = write_heart(tmp_path, [0, 4, 9], ["train", "test", "later"])
    with pytest.raises(DataError) as caught:
        import_uci_heart(source, tmp_path / "out")
    assert caught.value.problems == (
        "flamby_split_740.csv: column site: rows with a number other than 0 to 3 (2)",
        "flamby_split_740.csv: column fold: rows that are neither train nor test (1)",
    )


@pytest.mark.parametrize(
    ("importer", "file", "source"),
    [
        (import_uci_heart, "flamby_split_740.csv", "UCI Machine Learning Repository"),
        (import_tcga_brca, "brca.csv", "FLamby"),
        (import_eicu, "table patient", "PhysioNet"),
    ],
)
def test_a_missing_file_is_named_with_its_public_source(
    tmp_path: Path, importer: Callable[[Path, Path], ImportSummary], file: str, source: str
) -> None:
    with pytest.raises(DataError, match=f"{file} is missing") as caught:
        importer(tmp_path, tmp_path / "out")
    assert source in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"), [("age\n1\n", "column fold is missing"), ("", "cannot be read as CSV")]
)
def test_a_missing_column_or_an_empty_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "flamby_split_740.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        import_uci_heart(tmp_path, tmp_path / "out")


def test_a_folder_with_old_files_is_refused(tmp_path: Path) -> None:
    source = write_heart(tmp_path, [0, 1, 2, 3])
    import_uci_heart(source, tmp_path / "out")
    with pytest.raises(FedmapError, match="out exists and is not empty"):
        import_uci_heart(source, tmp_path / "out")


def test_brca_patients_meet_their_fold_by_id_and_keep_impossible_times(tmp_path: Path) -> None:
    source = write_brca(tmp_path, ["b", "a", "c", "d"], [("a", "train_0"), ("b", "test_5"), ("c", "test_0")])
    summary = import_tcga_brca(source, tmp_path / "out")
    assert rows_of(summary) == {"region0": 2, "region5": 1}
    assert [(entry.reason, entry.rows) for entry in summary.exclusions] == [
        ("no site in train_test_split.csv", 1)
    ]
    region5 = pd.read_csv(tmp_path / "out" / "region5.csv")
    assert region5.to_dict("records") == [{"pid": "b", "age, at index": 50, "E": 0.0, "T": 0, "fold": "test"}]


@pytest.mark.parametrize(
    ("pids", "folds", "problem"),
    [
        (["a", "a"], [("a", "train_0")], "brca.csv: column pid: repeated rows"),
        (["a"], [("a", "train_0"), ("a", "test_0")], "train_test_split.csv: column pid: repeated rows"),
        (["a"], [("b", "train_0")], "column pid: rows that are not in brca.csv"),
        (["a"], [("a", "validate_0")], "column fold2: rows that are not train_N or test_N"),
    ],
)
def test_brca_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, pids: list[str], folds: list[tuple[str, str]], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        import_tcga_brca(write_brca(tmp_path, pids, folds), tmp_path / "out")


def test_eicu_sites_share_the_columns_of_one_vocabulary(tmp_path: Path) -> None:
    source = write_eicu(tmp_path / "raw", {1: "West", 2: "South", 3: None}, 6)
    summary = import_eicu(source, tmp_path / "out")
    assert rows_of(summary) == {"south": 6, "unknown": 6, "west": 6}
    assert {site.site: site.tier for site in summary.sites} == {"south": 1, "unknown": 3, "west": 1}
    vocabulary = summary.vocabulary
    assert vocabulary is not None
    written = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert (written["digest"], tuple(written["terms"])) == (vocabulary.digest, vocabulary.terms)
    drugs, codes = (f"drug_drug_{n}" for n in range(3)), (f"dx_40{n}.9" for n in range(3))
    assert vocabulary.terms == (*drugs, *codes)
    for site in summary.sites:
        frame = pd.read_parquet(tmp_path / "out" / f"{site.site}.parquet")
        expected = ["patientunitstayid", "uniquepid", *vocabulary.terms, *PHYSIOLOGY, "died"]
        assert list(frame.columns) == expected
        assert site.notes[0].startswith("6 of 42 drug and diagnosis records are outside the vocabulary")


def test_a_site_that_does_not_train_does_not_shape_the_vocabulary(tmp_path: Path) -> None:
    source = write_eicu(tmp_path / "raw", {1: "West", 2: "South"}, 12)
    summary = import_eicu(source, tmp_path / "out", tiers={"south": 2}, min_sites=1)
    assert summary.vocabulary is not None
    assert "drug_local_1" in summary.vocabulary.terms
    assert "drug_local_2" not in summary.vocabulary.terms


def test_hospitals_too_small_to_train_are_an_error_that_says_so(tmp_path: Path) -> None:
    source = write_eicu(tmp_path / "raw", {1: "West", 2: "West"}, 6)
    with pytest.raises(DataError, match="none of 2 sites has more than 400 complete stays"):
        import_eicu(source, tmp_path / "out", by="hospital")


def test_hospitals_are_tiered_by_their_complete_stays(tmp_path: Path) -> None:
    source = write_eicu(tmp_path / "raw", {1: "West", 2: "South", 3: None}, 401, 100, 99)
    summary = import_eicu(source, tmp_path / "out", by="hospital", min_sites=1)
    assert [(site.site, site.tier, site.region) for site in summary.sites] == [
        ("hospital_001", 1, "west"),
        ("hospital_002", 2, "south"),
        ("hospital_003", 3, "unknown"),
    ]


def test_a_site_without_a_complete_stay_is_left_out_on_record(tmp_path: Path) -> None:
    source = write_eicu(tmp_path / "raw", {1: "West", 2: "South"}, 12)
    patients = pd.read_csv(source / "patient.csv.gz")
    patients.loc[patients["hospitalid"] == 2, "age"] = None
    patients.to_csv(source / "patient.csv.gz", index=False)
    summary = import_eicu(source, tmp_path / "out", min_sites=1)
    assert rows_of(summary) == {"west": 12}
    (left_out,) = summary.left_out
    assert (left_out.site, left_out.rows) == ("south", 0)
    assert [(entry.reason, entry.rows) for entry in left_out.exclusions] == [
        ("age, height or weight is missing", 12)
    ]
    assert pd.read_csv(tmp_path / "out" / "sites.csv")["site"].tolist() == ["west"]
    assert not (tmp_path / "out" / "south.parquet").exists()


def needs(folder: str) -> Path:
    if not (DATA / folder).is_dir():
        pytest.skip(f"{folder} is not here; set FEDMAP_DATA to the folder that has it")
    return DATA / folder


@pytest.mark.real_data
def test_every_heart_row_is_found_in_the_file_of_its_hospital(tmp_path: Path) -> None:
    source = needs("uci_heart")
    summary = import_uci_heart(source, tmp_path / "out")
    assert rows_of(summary) == {"cleveland": 303, "hungary": 261, "switzerland": 46, "va": 130}
    files = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va": "va"}
    for site, file in files.items():
        raw = pd.read_csv(source / f"processed.{file}.data", header=None, na_values="?")
        known = Counter(map(tuple, raw[[*range(10), 13]].astype(float).to_numpy().tolist()))
        cut = pd.read_csv(tmp_path / "out" / f"{site}.csv").drop(columns="fold").astype(float)
        assert not Counter(map(tuple, cut.to_numpy().tolist())) - known


@pytest.mark.real_data
def test_brca_has_1088_placed_patients_twelve_without_time(tmp_path: Path) -> None:
    summary = import_tcga_brca(needs("tcga_brca"), tmp_path / "out")
    assert list(rows_of(summary).values()) == [311, 196, 206, 162, 162, 51]
    times = pd.concat([pd.read_csv(tmp_path / "out" / f"{site.site}.csv")["T"] for site in summary.sites])
    assert len(times) == 1088
    assert int((times <= 0).sum()) == 12


@pytest.mark.real_data
def test_the_demo_plan_loads_every_region_of_the_imported_demo(tmp_path: Path) -> None:
    summary = import_eicu(needs("eicu_demo"), tmp_path / "out")
    assert rows_of(summary) == {"midwest": 189, "northeast": 53, "south": 128, "unknown": 34, "west": 57}
    assert summary.vocabulary is not None
    assert sum(term.startswith("drug_") for term in summary.vocabulary.terms) == 40
    assert len(summary.vocabulary.terms) == 40 + 30
    plan = load_plan(PROJECT / "lab" / "fedmap_lab" / "plans" / "eicu-demo.toml")
    for site in summary.sites:
        dataset = load_site(plan, site.site, tmp_path / "out" / f"{site.site}.parquet", site.tier)
        assert len(dataset.layout.names) == 77
        assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == site.rows


@pytest.mark.real_data
def test_the_published_rules_import_485_stays(tmp_path: Path) -> None:
    summary = import_eicu(needs("eicu_demo"), tmp_path / "out", rules=EicuRules.published())
    assert summary.rows == 485
