"""From a file to a `SiteDataset`: all problems at once, all exclusions on record, no value let out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmap.data.loading import load_frame, load_site
from fedmap.data.table.site_dataset import Exclusion, MissingCount, SiteDataset
from fedmap.errors import DataError
from fedmap.study.plan.reading import load_plan, parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from tests import plans

PROJECT = Path(__file__).parents[3]
REAL = Path(os.environ.get("FEDMAP_DATA", PROJECT.parent / "shared" / "data"))
SECRET = "Ermengarde-4711"


BINARY = plans.binary("sick")
COX = plans.cox("T", "E", 100.0, time_unit="days")
SPLIT = {"column": "fold", "train_value": "train", "test_value": "test"}


def demo(task: plans.Table = BINARY, sbp: plans.Table | None = None, **sections: plans.Table) -> StudyPlan:
    number = plans.number("sbp", unit="mmHg", range=[60, 260], **(sbp or {}))
    known: dict[str, plans.Table] = {"data": {"patient": "pid"}, "limits": {"min_rows": 10, "min_events": 2}}
    text = plans.plan_text("demo", task, number, plans.category("sex", "F", "M"), **(known | sections))
    return parse_plan(text, "demo.toml")


def table(rows: int = 50) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "pid": [f"p{number}" for number in range(rows)],
            "sbp": generator.normal(130, 10, rows).round(1),
            "sex": generator.choice(["F", "M"], rows),
            "sick": np.arange(rows) % 3 == 0,
            "T": generator.exponential(50, rows) + 1,
            "E": np.arange(rows) % 4 == 0,
            "note": "free text",
        }
    ).astype({"sick": int, "E": int})


def load(tmp_path: Path, plan: StudyPlan, frame: pd.DataFrame, tier: int = 1) -> SiteDataset:
    path = tmp_path / "north.csv"
    frame.to_csv(path, index=False)
    return load_site(plan, "north", path, tier)


def problems(tmp_path: Path, plan: StudyPlan, frame: pd.DataFrame, tier: int = 1) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        load(tmp_path, plan, frame, tier)
    return caught.value.problems


def test_a_sound_table_becomes_tensors_of_the_right_types(tmp_path: Path) -> None:
    data = load(tmp_path, demo(), table())
    assert (len(data.train), len(data.validation), len(data.test)) == (32, 8, 10)
    assert data.train.features.dtype == torch.float32
    assert data.train.target.dtype == torch.int64
    assert data.train.event is None
    assert data.layout.names == ("sbp", "sex=M")
    assert data.exclusions == ()
    assert data.notes == ()


def test_survival_targets_are_times_in_float64_and_events_in_bool(tmp_path: Path) -> None:
    data = load(tmp_path, demo(COX), table())
    assert data.train.target.dtype == torch.float64
    assert data.train.event is not None
    assert data.train.event.dtype == torch.bool


def test_csv_parquet_and_a_frame_in_memory_load_alike(tmp_path: Path) -> None:
    frame = table()
    frame.to_parquet(tmp_path / "north.parquet")
    from_csv = load(tmp_path, demo(), frame)
    from_parquet = load_site(demo(), "north", tmp_path / "north.parquet", 1)
    from_memory = load_frame(demo(), "north", frame.set_index(frame.index + 7), 1)
    for other in (from_parquet, from_memory):
        assert torch.equal(from_csv.train.features, other.train.features)
        assert torch.equal(from_csv.test.target, other.test.target)
        assert from_csv.layout == other.layout


def test_at_tier_3_all_rows_are_for_testing_and_few_are_enough(tmp_path: Path) -> None:
    data = load(tmp_path, demo(), table(4), tier=3)
    assert (len(data.train), len(data.validation), len(data.test)) == (0, 0, 4)
    assert data.train.features.shape == (0, 2)


def test_all_problems_of_a_site_come_out_in_one_error(tmp_path: Path) -> None:
    frame = table().drop(columns="sex").astype({"sbp": object, "sick": object})
    frame.loc[0, "sbp"] = "high"
    frame.loc[1, "sbp"] = 12.0
    frame.loc[2, "sick"] = 9
    frame.loc[4, "pid"] = "p3"
    found = problems(tmp_path, demo(), frame)
    assert found == (
        "sex: the column is missing",
        "sbp: 1 of 50 values are not numbers",
        "sbp: 1 of 50 values lie outside 60 to 260 mmHg: check the unit",
        "sick: 1 of 50 values are not among the classes 0, 1",
        "pid: 1 patients have more than one row, and the plan wants one each",
    )


def test_an_error_names_the_site_and_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path, demo(), table().drop(columns="sex"))
    assert str(caught.value).startswith("north: ")
    assert "hint: Correct the site's file" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "tier", "problem"),
    [
        (0, 1, "the file has no rows"),
        (0, 3, "the file has no rows"),
        (5, 1, "5 rows for training, the plan wants at least 10 (limits.min_rows)"),
        # Enough only with the test part.
        (11, 1, "9 rows for training, the plan wants at least 10 (limits.min_rows)"),
    ],
)
def test_too_few_rows_are_refused_with_the_count(tmp_path: Path, rows: int, tier: int, problem: str) -> None:
    assert problems(tmp_path, demo(), table(rows), tier) == (problem,)


def test_a_site_whose_rows_are_all_excluded_says_why(tmp_path: Path) -> None:
    frame = table()
    frame["sbp"] = None
    plan = demo(sbp={"missing": "exclude"})
    assert problems(tmp_path, plan, frame) == ("no row is left (50 dropped: sbp missing)",)


def test_zero_times_are_refused_unless_the_plan_excludes_them(tmp_path: Path) -> None:
    frame = table()
    frame.loc[[0, 1], "T"] = [0.0, -3.0]
    assert problems(tmp_path, demo(COX), frame) == ("T: 2 of 50 values are zero or negative times",)
    data = load(tmp_path, demo(COX, data={"patient": "pid", "exclude_nonpositive_time": True}), frame)
    assert data.exclusions == (Exclusion("T not above 0", 2),)


@pytest.mark.parametrize("tier", [1, 3])
def test_empty_cells_are_counted_whatever_becomes_of_them(tier: int) -> None:
    features = (
        plans.number("sbp", missing="exclude"),
        plans.category("sex", "F", "M", missing={"fill": "F"}),
        plans.block("drug_", 2, missing={"fill": 0}),
    )
    limits = {"min_rows": 10, "min_events": 2}
    plan = parse_plan(plans.plan_text("demo", BINARY, *features, limits=limits), "demo.toml")
    rows = np.arange(40)
    frame = pd.DataFrame({"sbp": np.where(rows < 4, np.nan, 120), "sex": np.where(rows % 10, "M", "")})
    frame = frame.assign(drug_a=np.where(rows < 7, np.nan, 1), drug_b=1.0, sick=rows % 2)
    data = load_frame(plan, "north", frame, tier)
    assert data.missing == (
        MissingCount("sbp", 4, 40),
        MissingCount("sex", 4, 40),
        MissingCount("drug_", 7, 80),
    )
    assert data.exclusions == (Exclusion("sbp missing", 4),)


@pytest.mark.parametrize(
    ("plan", "column", "positive", "note"),
    [
        (demo(), "sick", 50, "the site has one class only"),
        (demo(COX), "E", 0, "the site has no events"),
        (demo(COX), "E", 2, "the validation part has no events"),
    ],
)
def test_a_thin_site_is_loaded_with_a_note(
    tmp_path: Path, plan: StudyPlan, column: str, positive: int, note: str
) -> None:
    data = load(tmp_path, plan, table().assign(**{column: [1] * positive + [0] * (50 - positive)}))
    assert note in data.notes


def test_a_fixed_split_is_honoured_and_validation_comes_from_its_training_part(tmp_path: Path) -> None:
    frame = table()
    frame["fold"] = ["test" if number % 2 else "train" for number in range(50)]
    plan = demo(split=SPLIT)
    data = load(tmp_path, plan, frame)
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 5, 25)
    expected = torch.tensor(frame.loc[frame["fold"] == "test", "sbp"].to_numpy(), dtype=torch.float32)
    assert torch.equal(data.test.features[:, 0], expected)
    assert load(tmp_path, plan, frame.drop(columns="fold"), tier=3).notes == ()


def test_rows_of_one_patient_stay_together(tmp_path: Path) -> None:
    frame = table(90)
    frame["pid"] = [f"p{number // 3}" for number in range(90)]
    frame["sbp"] = 100.0 + np.arange(90) // 3  # the patient, readable from the tensor
    data = load(tmp_path, demo(data={"patient": "pid", "repeated_patients": "allow"}), frame)
    parts = [set(part.features[:, 0].tolist()) for part in (data.train, data.validation, data.test)]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_a_frame_with_a_doubled_column_is_refused() -> None:
    frame = pd.concat([table(), table()[["sbp"]]], axis=1)
    with pytest.raises(DataError, match="sbp: the column is named twice"):
        load_frame(demo(), "north", frame, 1)


# The shapes of DOMAIN section 3, through the plans that ship


def cprd_table(rows: int = 300) -> pd.DataFrame:
    generator = np.random.default_rng(1)
    flags = {name: generator.integers(0, 2, rows) for name in ("smoking_status", "bp_med", "diabetes_diag")}
    return pd.DataFrame(
        {
            "pracid": 1,
            "patid": np.arange(rows) // 2,
            "sex": generator.choice(["F", "M"], rows),
            **flags,
            "sbp": generator.normal(130, 10, rows),
            "tchol": generator.normal(5, 0.5, rows),
            "hdl": generator.normal(1.5, 0.1, rows),
            "landmark_age": generator.choice([40, 45, 85], rows),
            "end_time": generator.uniform(0.5, 15, rows),
            "event": generator.integers(0, 2, rows),
            "cvd_before_landmark": [1] * 5 + [0] * (rows - 5),
            "death_before_landmark": 0,
        }
    )


def test_a_cprd_file_is_loaded_with_its_rules(tmp_path: Path) -> None:
    data = load(tmp_path, load_plan(PROJECT / "lab/fedmap_lab/plans/cprd.toml"), cprd_table())
    assert data.exclusions == (Exclusion("cardiovascular disease before the landmark", 5),)
    assert data.train.features.shape[1] == 8
    assert float(data.train.target.max()) == 10.0
    assert data.train.event is not None
    assert not data.train.event[data.train.target == 10.0].any()


def test_a_cprd_file_without_its_rule_columns_is_refused(tmp_path: Path) -> None:
    frame = cprd_table().drop(columns="death_before_landmark")
    assert problems(tmp_path, load_plan(PROJECT / "lab/fedmap_lab/plans/cprd.toml"), frame) == (
        "death_before_landmark: the column is missing",
    )


def test_an_interval_file_in_the_wrong_unit_is_refused_by_column(tmp_path: Path) -> None:
    plan = load_plan(PROJECT / "lab/fedmap_lab/plans/interval.toml")
    typical = {
        "WBC_10_9_L": 6.0, "RBC_10_12_L": 4.7, "HGB_g_L": 140.0, "HCT_PCT": 42.0, "MCV_fL": 90.0,
        "MCH_pg": 30.0, "MCHC_g_dL": 33.0, "PLT_10_9_L": 250.0, "RDW_SD_fL": 42.0, "NEUT_10_9_L": 3.5,
        "LYMPH_10_9_L": 1.9, "MONO_10_9_L": 0.5, "EO_10_9_L": 0.2, "BASO_10_9_L": 0.05,
        "NRBC_10_9_L": 0.0, "IG_10_9_L": 0.02, "Age": 45, "Sex": "F", "delay_hours": 20,
        "height_m": 1.7, "weight_kg": 70,
    }  # fmt: skip
    frame = pd.DataFrame([typical] * 40).assign(ferritin_low=[0, 1] * 20)
    assert load(tmp_path, plan, frame).notes == ()
    frame["HGB_g_L"] = 14.0
    frame["MCHC_g_dL"] = 330.0
    assert problems(tmp_path, plan, frame) == (
        "HGB_g_L: 40 of 40 values lie outside 30 to 250 g/l: check the unit",
        "MCHC_g_dL: 40 of 40 values lie outside 15 to 50 g/dl: check the unit",
    )


def test_a_wide_eicu_file_is_loaded_by_blocks(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    rows = 60
    physiology = {
        "gcs_eyes": 4.0, "gcs_motor": 6.0, "gcs_verbal": 5.0, "heart_rate": 80.0, "systolic_bp": 120.0,
        "respiration": 18.0, "o2_saturation": 97.0,
    }  # fmt: skip
    names = [f"drug_{n:04d}" for n in range(1, 1412)] + [f"dx_{n:03d}" for n in range(1, 687)]
    counts = pd.DataFrame(generator.poisson(0.1, (rows, len(names))), columns=names)
    stays = pd.DataFrame([physiology] * rows).assign(
        uniquepid=[f"u{n // 2}" for n in range(rows)], died=[1, 0, 0] * 20
    )
    pd.concat([stays, counts], axis=1).to_parquet(tmp_path / "h.parquet")
    data = load_site(load_plan(PROJECT / "lab/fedmap_lab/plans/eicu.toml"), "h", tmp_path / "h.parquet", 1)
    assert [(group, len(indices)) for group, indices in data.layout.groups] == [
        ("drugs", 1411),
        ("diagnoses", 686),
        ("physiology", 7),
    ]


# No value gets out


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    column=st.sampled_from(["pid", "sbp", "sex", "sick", "T", "E", "fold"]),
    planted=st.one_of(st.just(SECRET), st.just(987654.328125), st.just(-987654.328125), st.just("")),
    row=st.integers(0, 49),
    survival=st.booleans(),
    parquet=st.booleans(),
)
def test_no_planted_value_ever_shows_in_an_error(
    tmp_path: Path, column: str, planted: object, row: int, survival: bool, parquet: bool
) -> None:
    plan = demo(COX if survival else BINARY, split=SPLIT)
    frame = table().assign(fold=["train", "train", "test", "train", "test"] * 10)
    cells: list[object] = frame[column].tolist()
    cells[row] = planted
    frame[column] = pd.Series(cells, dtype=object)
    patients: list[object] = frame["pid"].tolist()
    patients[(row + 1) % 50] = patients[row]  # and a patient twice
    frame["pid"] = pd.Series(patients, dtype=object)
    path = tmp_path / ("north.parquet" if parquet else "north.csv")
    if parquet:
        frame.astype({column: str, "pid": str}).to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    with pytest.raises(DataError) as caught:
        load_site(plan, "north", path, 1)
    message = str(caught.value)
    assert SECRET not in message
    assert "987654" not in message
    assert f"p{row}\n" not in message
    assert "free text" not in message


# The public files


def real_file(name: str) -> pd.DataFrame:
    if not (REAL / name).is_file():
        pytest.skip(f"{name} is not in FEDMAP_DATA or ../shared/data")
    return pd.read_csv(REAL / name)


@pytest.mark.real_data
def test_the_four_hospitals_of_uci_heart_are_loaded(tmp_path: Path) -> None:
    plan = load_plan(PROJECT / "lab/fedmap_lab/plans/uci-heart.toml")
    frame = real_file("uci_heart/flamby_split_740.csv")
    sites = [load(tmp_path, plan, rows) for _, rows in frame.groupby("site")]
    assert [len(site.train) + len(site.validation) for site in sites] == [199, 172, 30, 85]
    assert [len(site.test) for site in sites] == [104, 89, 16, 45]
    assert "the training part has one class only" in sites[2].notes


@pytest.mark.real_data
def test_the_six_regions_of_tcga_brca_are_loaded(tmp_path: Path) -> None:
    plan = load_plan(PROJECT / "lab/fedmap_lab/plans/tcga-brca.toml")
    folds = real_file("tcga_brca/train_test_split.csv")
    frame = real_file("tcga_brca/brca.csv").merge(folds, on="pid")
    sites = [load(tmp_path, plan, rows) for _, rows in frame.groupby(frame["fold2"].str[-1])]
    excluded = [exclusion.rows for site in sites for exclusion in site.exclusions]
    assert excluded == [9, 3]
    assert sum(len(s.train) + len(s.validation) + len(s.test) for s in sites) == 1088 - 12
    smallest = sites[5]
    assert smallest.train.event is not None
    assert smallest.validation.event is not None
    assert int(smallest.train.event.sum() + smallest.validation.event.sum()) == 2
    assert all(site.train.features.shape[1] == 39 for site in sites)
