"""Cells as numbers and codes: what is a number, what is missing, what is neither."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.data.table.columns import codes, flag_problems, numbers


def test_numbers_are_read_from_text_and_the_rest_is_counted() -> None:
    found = numbers(pd.Series([" 5 ", "1e3", "NA", "", None, "high", "1,5", "1_000", "-inf"]))
    assert found.values[:2].tolist() == [5.0, 1000.0]
    assert found.missing.tolist() == [False, False, True, True, True, False, False, False, False]
    assert found.not_numbers == 3
    assert found.infinite == 1


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, 0, None], dtype="Int64"),
        pd.Series([True, False, None], dtype=object),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series([Decimal(1), Decimal(0), None], dtype=object),
        pd.Series(pd.Categorical(["1", "0", None])),
        pd.Series([1.0, 0.0, math.nan]),
    ],
    ids=["nullable integer", "objects", "nullable boolean", "decimal", "categorical", "float"],
)
def test_every_way_a_file_can_hold_numbers_gives_the_same(column: pd.Series[float]) -> None:
    found = numbers(column)
    assert found.values[:2].tolist() == [1.0, 0.0]
    assert found.missing.tolist() == [False, False, True]
    assert found.not_numbers == 0


def test_dates_are_not_numbers() -> None:
    found = numbers(pd.Series(["2020-01-01", None], dtype="datetime64[ns]"))
    assert found.not_numbers == 1
    assert found.missing.tolist() == [False, True]


def test_a_number_too_large_for_a_32_bit_float_counts_as_infinite() -> None:
    assert numbers(pd.Series([1e300, 1.0])).infinite == 1


def test_codes_follow_the_plan_and_not_the_order_in_the_file() -> None:
    assert codes(pd.Series(["M", "F", "M"]), ("F", "M")).values.tolist() == [1, 0, 1]
    assert codes(pd.Series(["M", "M"]), ("F", "M")).values.tolist() == [1, 1]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([0, 1]),
        pd.Series([0.0, 1.0]),
        pd.Series(["0", "1"]),
        pd.Series([" 0.0", "1.0 "]),
        pd.Series([False, True]),
        pd.Series(["false", "True"]),
    ],
)
def test_categories_that_look_like_numbers_compare_as_numbers(column: pd.Series[float]) -> None:
    assert codes(column, ("0", "1")).values.tolist() == [0, 1]


def test_a_missing_word_that_the_plan_declares_is_a_category() -> None:
    found = codes(pd.Series(["None", "Daily", "", "Weekly"]), ("None", "Daily"))
    assert found.values.tolist() == [0, 1, -1, -1]
    assert found.missing.tolist() == [False, False, True, False]
    assert found.unknown == 1


def test_flags_other_than_0_and_1_are_counted() -> None:
    assert flag_problems("event", numbers(pd.Series([0, 1, 2, None, 0.5]))) == (
        "event: 2 of 5 values are neither 0 nor 1",
        "event: 1 of 5 values are missing",
    )
    assert flag_problems("event", numbers(pd.Series(["yes", "1"]))) == (
        "event: 1 of 2 values are neither 0 nor 1",
    )
    assert flag_problems("event", numbers(pd.Series([True, False]))) == ()


@given(values=st.lists(st.one_of(st.none(), st.text(max_size=6), st.floats(), st.integers()), max_size=20))
def test_every_cell_is_a_number_or_missing_or_counted(values: list[object]) -> None:
    column = pd.Series(values, dtype=object)
    found = numbers(column)
    usable = int((~np.isnan(found.values)).sum())
    assert usable + int(found.missing.sum()) + found.not_numbers == len(values)
    coded = codes(column, ("0", "1"))
    assert int((coded.values >= 0).sum()) + int(coded.missing.sum()) + coded.unknown == len(values)
