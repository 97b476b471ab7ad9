"""Rows that come as messages, and what is said of columns that are not there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.data.feature_rows import Cell, check_records, feature_columns, missing_columns
from fedmap.errors import DataError, ModelError
from fedmap.study.plan.reading import parse_plan
from tests import plans

PLAN = parse_plan(
    plans.plan_text(
        "rows",
        plans.binary("ill"),
        plans.number("age", range=[18, 110]),
        plans.category("smoker", 0, 1),
        plans.block("dx_", 8, missing={"fill": 0}),
    ),
    "rows.toml",
)
BLOCK = tuple(f"dx_{letter}" for letter in "abcdefgh")
INPUTS = ("age", "smoker=1", *BLOCK)


def record(**changed: Cell) -> dict[str, Cell]:
    return {"age": 61.0, "smoker": 1.0, **dict.fromkeys(BLOCK, 0.0), **changed}


def test_a_record_becomes_the_inputs_of_the_model() -> None:
    rows = check_records(PLAN, INPUTS, [record(), record(smoker="0", dx_h=None, dx_a=3.0)])
    assert rows.usable.all()
    assert rows.values.tolist() == [[61, 1, *[0] * 8], [61, 0, 3, *[0] * 7]]


def test_true_stands_for_one_and_other_names_are_ignored() -> None:
    rows = check_records(PLAN, INPUTS, [record(smoker=True, patient="x"), record(smoker=False)])
    assert rows.values[:, 1].tolist() == [1, 0]


def test_true_is_no_number() -> None:
    rows = check_records(PLAN, INPUTS, [record(age=True), record()])
    assert rows.usable.tolist() == [False, True]


def test_a_bad_row_does_not_spoil_the_others() -> None:
    rows = check_records(PLAN, INPUTS, [record(age="old"), record(), record(age=None, smoker="maybe")])
    assert rows.reasons() == ["age: not a number", "", "age: missing; smoker: no category of the plan"]
    assert torch.equal(rows.usable_values, rows.values[1:2])


def test_a_row_that_leaves_a_column_out_is_refused_by_name_and_count() -> None:
    short = record()
    del short["age"], short["dx_c"]
    with pytest.raises(DataError) as caught:
        check_records(PLAN, INPUTS, [record(), short])
    assert caught.value.problems == (
        "age: 1 of 2 rows do not name it",
        "dx_c: 1 of 2 rows do not name it",
    )


def test_missing_columns_of_a_block_are_counted_and_some_are_named() -> None:
    columns = feature_columns(PLAN, INPUTS)
    assert missing_columns(columns, ["age", *BLOCK[:7]]) == (
        "age: the column is missing",
        "dx_: 7 of 8 columns are missing (dx_a, dx_b, dx_c, dx_d, dx_e and 2 more)",
    )


def test_inputs_that_are_not_the_plans_are_refused() -> None:
    wrong = ("age", "smoker=yes", *BLOCK)
    with pytest.raises(ModelError):
        check_records(PLAN, wrong, [record()])


cell = st.none() | st.booleans() | st.text(max_size=5) | st.floats(allow_nan=False)


@given(st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=6))
def test_whatever_a_message_holds_a_row_is_either_in_range_or_has_a_reason(
    rows: list[tuple[Cell, Cell, Cell]],
) -> None:
    found = check_records(PLAN, INPUTS, [record(age=a, smoker=s, dx_b=d) for a, s, d in rows])
    ages = found.usable_values[:, 0]
    assert bool(((ages >= 18) & (ages <= 110)).all())
    assert bool(torch.isfinite(found.usable_values).all())
    assert [reason == "" for reason in found.reasons()] == found.usable.tolist()
