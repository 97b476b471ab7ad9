"""Splits: patients stay whole, shares are right, outcomes are spread, and tiny sites never break it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.data.split import (
    FixedTest,
    Labels,
    Parts,
    draw_parts,
    one_patient_per_row,
    read_fixed_test,
    read_patients,
)
from fedmap.study.plan.sections import SplitSection

PLAIN = SplitSection()
FIXED = SplitSection(column="fold", train_value="train", test_value="test")


def labels(values: list[int]) -> Labels:
    return np.array(values, dtype=np.int64)


def draw(patients: Labels, stratum: Labels, split: SplitSection = PLAIN, site: str = "north") -> Parts:
    return draw_parts(site, split, patients, stratum, None)


@st.composite
def sites(draw_value: st.DrawFn) -> tuple[Labels, Labels]:
    """Patients with one to six rows each, in any order, with rare or common outcomes."""
    sizes = draw_value(st.lists(st.integers(1, 6), min_size=1, max_size=80))
    patients = np.repeat(np.arange(len(sizes)), sizes)
    rate = draw_value(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    generator = np.random.default_rng(draw_value(st.integers(0, 2**32 - 1)))
    patients = generator.permutation(patients).astype(np.int64)
    return patients, (generator.random(len(patients)) < rate).astype(np.int64)


@settings(max_examples=150)
@given(site=sites(), test=st.sampled_from([0.1, 0.2, 0.5, 0.8]), validation=st.sampled_from([0.1, 0.2, 0.5]))
def test_no_patient_straddles_a_split_and_the_shares_are_right_within_one_patient(
    site: tuple[Labels, Labels], test: float, validation: float
) -> None:
    patients, stratum = site
    parts = draw(patients, stratum, SplitSection(test=test, validation=validation))
    rows = np.concatenate([parts.train, parts.validation, parts.test])
    assert sorted(rows.tolist()) == list(range(len(patients)))
    of_part = [set(patients[part].tolist()) for part in (parts.train, parts.validation, parts.test)]
    assert not of_part[0] & of_part[1]
    assert not of_part[0] & of_part[2]
    assert not of_part[1] & of_part[2]
    largest = int(np.bincount(patients).max())
    assert abs(len(parts.test) - test * len(patients)) <= largest
    rest = len(parts.train) + len(parts.validation)
    assert abs(len(parts.validation) - validation * rest) <= largest
    if len(set(patients.tolist())) >= 3:
        assert all(len(part) for part in (parts.train, parts.validation, parts.test)) or rest <= largest


@settings(max_examples=100)
@given(positives=st.integers(0, 60), negatives=st.integers(1, 200), seed=st.integers(0, 1000))
def test_each_outcome_is_spread_by_the_shares_within_one_row(
    positives: int, negatives: int, seed: int
) -> None:
    stratum = labels([1] * positives + [0] * negatives)
    parts = draw(one_patient_per_row(len(stratum)).numbers, stratum, SplitSection(seed=seed))
    if len(stratum) < 5:
        return
    for kind, count in ((1, positives), (0, negatives)):
        assert abs(int((stratum[parts.test] == kind).sum()) - 0.2 * count) <= 1


def test_the_split_depends_on_the_seed_and_the_site_and_on_nothing_else() -> None:
    patients, stratum = one_patient_per_row(100).numbers, labels([0, 1] * 50)
    first = draw(patients, stratum)
    again = draw(patients, stratum)
    assert first.test.tolist() == again.test.tolist()
    assert first.validation.tolist() == again.validation.tolist()
    assert first.test.tolist() != draw(patients, stratum, SplitSection(seed=1)).test.tolist()
    assert first.test.tolist() != draw(patients, stratum, site="south").test.tolist()


def test_a_few_events_are_kept_for_training_rather_than_lost() -> None:
    stratum = labels([1, 1] + [0] * 40)
    parts = draw(one_patient_per_row(42).numbers, stratum)
    assert int(stratum[parts.train].sum()) == 2


def test_a_single_patient_stays_in_the_training_part() -> None:
    parts = draw(labels([0, 0, 0]), labels([0, 1, 0]))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (3, 0, 0)


def test_a_given_test_part_is_honoured_exactly() -> None:
    given_rows = np.array([True, False, False, True] * 10)
    stratum = labels([0, 1] * 20)
    parts = draw_parts("north", FIXED, one_patient_per_row(40).numbers, stratum, FixedTest(given_rows))
    assert parts.test.tolist() == np.flatnonzero(given_rows).tolist()
    assert len(parts.validation) == 4
    assert not set(parts.validation.tolist()) & set(parts.test.tolist())


def test_a_fixed_split_with_unknown_values_is_refused_with_the_count() -> None:
    column = pd.Series(["train", "test ", "holdout", None])
    fixed = read_fixed_test(column, FIXED, one_patient_per_row(4).numbers)
    assert fixed.problems == ("fold: 2 of 4 values are neither train nor test",)


def test_a_fixed_split_that_divides_a_patient_is_refused() -> None:
    fixed = read_fixed_test(pd.Series(["train", "test", "train"]), FIXED, labels([7, 7, 8]))
    assert fixed.problems == ("fold: 1 patients have rows in both parts",)


def test_a_numeric_fixed_split_is_read() -> None:
    split = SplitSection(column="fold", train_value="0", test_value="1")
    fixed = read_fixed_test(pd.Series([0.0, 1.0]), split, labels([0, 1]))
    assert fixed.problems == ()
    assert fixed.rows.tolist() == [False, True]


@pytest.mark.parametrize(
    "column", [pd.Series([5, 6, 5]), pd.Series(["a", "b", " a"]), pd.Series([5.0, 6.0, 5.0])]
)
def test_a_duplicated_patient_is_refused_or_kept_together_as_the_plan_says(column: pd.Series[str]) -> None:
    refused = read_patients(column, "pid", repeated=False)
    assert refused.problems == ("pid: 1 patients have more than one row, and the plan wants one each",)
    allowed = read_patients(column, "pid", repeated=True)
    assert allowed.problems == ()
    assert allowed.numbers.tolist() == [0, 1, 0]


def test_rows_without_a_patient_are_refused() -> None:
    assert read_patients(pd.Series(["a", "", None]), "pid", repeated=True).problems == (
        "pid: 2 of 3 rows have no patient",
    )


def test_patients_whose_numbers_differ_in_leading_zeros_are_two() -> None:
    assert read_patients(pd.Series(["07", "7"]), "pid", repeated=False).problems == ()
