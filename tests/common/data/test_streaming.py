"""Rows to predict from, out of files: the same numbers as the training loader, and every fault counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmap.data import streaming
from fedmap.data.loading import load_site
from fedmap.data.streaming import FeatureFile
from fedmap.data.table.faults import FaultTally
from fedmap.errors import DataError
from fedmap.study.plan.reading import load_plan, parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from tests import plans

PLANTED = "9434765919"
INTERVAL = Path(__file__).resolve().parents[3] / "lab" / "fedmap_lab" / "plans" / "interval.toml"
PLAN = parse_plan(
    plans.plan_text(
        "rows",
        plans.binary("ill"),
        plans.number("age", unit="years", range=[18, 110]),
        plans.number("hb", unit="g/l", range=[30, 250], missing="exclude"),
        plans.number("crp", range=[0, 500], transform="log1p", missing={"fill": 1.0}),
        plans.category("sex", "F", "M"),
        plans.block("drug_", 2, range=[0, 9], missing={"fill": 0}),
        limits={"min_rows": 2},
    ),
    "rows.toml",
)
INPUTS = ("age", "hb", "crp", "sex=M", "drug_a", "drug_b")
HEADER = "age,hb,crp,sex,drug_a,drug_b"
GOOD = "61,140,3.5,F,0,2"


def write(folder: Path, *lines: str, header: str = HEADER, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def opened(
    path: Path, plan: StudyPlan = PLAN, inputs: tuple[str, ...] = INPUTS, identifier: str | None = None
) -> FeatureFile:
    return FeatureFile(plan, inputs, path, identifier)


def problems_of(path: Path) -> tuple[str, ...]:
    """All faults of a file's cells."""
    tally = FaultTally()
    for block in opened(path).blocks():
        tally.add(len(block.rows), block.rows.faults, block.rows.left_out)
    return tally.problems()


def refusal(path: Path, identifier: str | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        list(opened(path, identifier=identifier).blocks())
    assert PLANTED not in str(caught.value)
    return caught.value


def rows_of(count: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "drug_b": rng.integers(0, 9, count),
            "age": rng.integers(18, 110, count),
            "sex": rng.choice(["F", "M"], count),
            "name": [f"{PLANTED}-{row}" for row in range(count)],
            "hb": rng.normal(140, 10, count).round(1),
            "crp": rng.lognormal(0, 1, count).round(3),
            "drug_a": rng.integers(0, 9, count),
            "ill": rng.integers(0, 2, count),
        }
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_in_blocks_gives_the_very_numbers_of_the_training_loader(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(streaming, "_MOST_ROWS", 256)
    path = tmp_path / f"rows{suffix}"
    table = rows_of(1000)
    if suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pa_parquet.write_table(table, path, row_group_size=300)
    blocks = list(opened(path).blocks())
    assert len(blocks) > 3
    assert blocks[-1].done == 1.0
    values = torch.cat([block.rows.usable_values for block in blocks])
    assert torch.equal(values, load_site(PLAN, "rows", path, 3).test.features)


def test_reordered_and_extra_columns_are_fine_and_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pa_csv.write_csv(rows_of(5), path)
    extra, order = opened(path).notes
    assert extra == "2 other columns of the file: not used"
    assert "another order" in order
    assert opened(write(tmp_path, GOOD)).notes == ()


def test_missing_columns_are_all_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, f"61,3.5,F,{PLANTED}", header="age,crp,sex,drug_z")
    assert refusal(path, identifier="patient").problems == (
        "hb: the column is missing",
        "drug_: 2 of 2 columns are missing (drug_a, drug_b)",
        "patient: the column to take identifiers from is missing",
    )


def test_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD},55", header=f"{HEADER},age")
    assert refusal(path).problems == ("age: the column is named twice",)


def test_a_drug_that_the_federation_does_not_know_is_left_aside(tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD},7", header=f"{HEADER},drug_local")
    (block,) = opened(path).blocks()
    assert block.rows.values.tolist()[0][-2:] == [0.0, 2.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (HEADER.encode() + b"\n", "has no rows"),
        (f"{PLANTED},1,2\n3,4,5\n".encode(), "has none of the plan's columns"),
        (f"{HEADER}\n61,140,3.5,F,0\n".encode(), "no sound .csv file"),
        (f'{HEADER}\n61,140,3.5,"{PLANTED},0,2\n{GOOD}\n'.encode(), "no sound .csv file"),
        (f"{HEADER}\n61,140,3.5,F\xfc{PLANTED},0,2\n".encode("latin-1"), "no sound .csv file"),
    ],
)
def test_a_csv_file_that_is_none_is_refused_without_a_quotation(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    (problem,) = refusal(path).problems
    assert words in problem


def test_a_parquet_file_that_was_cut_or_holds_lists_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = rows_of(50)
    pa_parquet.write_table(table.set_column(1, "age", pa.array([[1.0]] * 50)), path)
    assert refusal(path).problems == ("age: the column holds lists or records",)
    pa_parquet.write_table(table, path)
    path.write_bytes(path.read_bytes()[:-40])
    assert "no sound .parquet file" in refusal(path).problems[0]


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    assert "neither .csv nor .parquet" in refusal(tmp_path / "rows.xlsx").problems[0]


def test_text_in_a_number_column_is_counted_and_the_other_rows_stand(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, f"{PLANTED}x,140,3.5,M,1,1", "unknown,141,2,M,0,0", GOOD)
    assert problems_of(path) == ("age: 2 of 4 values are not numbers",)
    (block,) = opened(path).blocks()
    assert block.rows.usable.tolist() == [True, False, False, True]
    assert block.rows.reasons() == ["", "age: not a number", "age: not a number", ""]
    assert torch.equal(block.rows.usable_values[0], block.rows.usable_values[1])


def test_units_wrong_by_ten_are_caught_by_the_ranges(tmp_path: Path) -> None:
    path = write(tmp_path, *["61,14.0,3.5,F,0,2"] * 7, GOOD)  # haemoglobin in g/dl
    assert problems_of(path) == ("hb: 7 of 8 values lie outside 30 to 250 g/l: check the unit",)


def test_missing_cells_are_filled_where_the_plan_says_so_and_otherwise_not_predicted(tmp_path: Path) -> None:
    path = write(tmp_path, "61,140,,F,,2", "NA,,n/a,F,0,2", "55,150,None,,0,2")
    (block,) = opened(path).blocks()
    assert block.rows.reasons() == ["", "age: missing; hb: missing", "sex: missing"]
    assert block.rows.values[0].tolist() == pytest.approx([61, 140, np.log1p(1.0), 0, 0, 2])


def test_spaces_quotes_and_true_mean_what_they_mean_in_training(tmp_path: Path) -> None:
    path = write(tmp_path, '" 61 ",+140,3.5e0,"M",true,1', " 61,140,3.5,M ,TRUE,1")
    (block,) = opened(path).blocks()
    assert block.rows.usable.all()
    assert torch.equal(block.rows.values[0], block.rows.values[1])


def test_a_text_far_down_is_counted_as_if_it_stood_at_the_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 2048)
    path = write(tmp_path, *[GOOD] * 800, f"{PLANTED}x,140,3.5,M,1,1", *[GOOD] * 199)
    assert problems_of(path) == ("age: 1 of 1000 values are not numbers",)


def test_identifiers_are_handed_through_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD},007", f"{GOOD},NA", header=f"{HEADER},number")
    (block,) = opened(path, identifier="number").blocks()
    assert block.identifiers is not None
    assert block.identifiers.to_pylist() == ["007", "NA"]
    table = rows_of(3).append_column("number", pa.array([7, None, 9]))
    pa_parquet.write_table(table, tmp_path / "rows.parquet")
    (block,) = opened(tmp_path / "rows.parquet", identifier="number").blocks()
    assert block.identifiers is not None
    assert block.identifiers.to_pylist() == [7, None, 9]


def test_rows_outside_the_study_are_not_predicted_where_the_file_tells(tmp_path: Path) -> None:
    plan = load_plan(INTERVAL)
    columns = {feature.name: "F" for feature in plan.features if not hasattr(feature, "prefix")}
    for feature in plan.features:
        if feature.range is not None and not hasattr(feature, "prefix"):
            columns[feature.name] = f"{sum(feature.range) / 2:g}"
    inputs = tuple(name if name != "Sex" else "Sex=M" for name in columns)
    lines = [f"{','.join(columns.values())},{delay},1.7,70" for delay in ("12", "40", "", "late")]
    path = write(tmp_path, *lines, header=f"{','.join(columns)},delay_hours,height_m,weight_kg")
    (block,) = opened(path, plan, inputs).blocks()
    assert block.rows.reasons() == [
        "",
        "delay_hours outside 0 to 36 hours",
        "delay_hours missing",
        "delay_hours: not a number",
    ]
    bare = write(tmp_path, ",".join(columns.values()), header=",".join(columns), name="bare.csv")
    assert "the study's rules on it were not applied" in opened(bare, plan, inputs).notes[0]


cells = st.sampled_from(["61", "17", "300", "", "NA", "x", " 44 ", "true", "1e400", "-5", "6,1"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(cells, cells, st.sampled_from(["F", "M", "", "f", "1"])), min_size=1, max_size=40))
def test_every_cell_is_judged_as_the_training_loader_judges_it(
    tmp_path: Path, rows: list[tuple[str, str, str]]
) -> None:
    """One column of one text each, so that the loader's guess of a column's type is the same."""
    for age, hb, sex in rows:
        path = write(tmp_path, f'"{age}","{hb}",1,{sex},0,0,1', header=f"{HEADER},ill")
        (block,) = opened(path).blocks()
        try:
            loaded = load_site(PLAN, "rows", path, 3).test.features
        except DataError:
            assert not block.rows.usable.any()
        else:
            assert torch.equal(block.rows.usable_values, loaded)
