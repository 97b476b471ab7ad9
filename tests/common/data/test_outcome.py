"""Outcomes: classes and survival, and what is noted of a thin site."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmap.data.outcome import nonpositive_times, outcome_notes, read_outcome
from fedmap.study.plan.sections import LimitsSection, PositiveRule, TaskSection

BINARY = TaskSection(kind="binary", metric="auroc", label="sick", classes=("no", "yes"))
GRADED = TaskSection(kind="binary", metric="auroc", label="num", positive=PositiveRule(above=0.0))
LOW = TaskSection(kind="binary", metric="auroc", label="num", positive=PositiveRule(below=15.0))
COX = TaskSection(kind="cox", metric="c_index", time="T", event="E", time_unit="days", horizon=10.0)
THREE = TaskSection(kind="multiclass", metric="auroc", label="kind", classes=("a", "b", "c"))
LIMITS = LimitsSection(min_events=2)
NONE = np.zeros(0, dtype=np.intp)


def test_classes_are_numbered_in_the_order_of_the_plan() -> None:
    outcome = read_outcome(pd.DataFrame({"sick": ["yes", "no", "yes "]}), BINARY)
    assert outcome.target.tolist() == [1, 0, 1]
    assert outcome.target.dtype == np.int64
    assert outcome.event is None


def test_a_label_outside_its_set_is_counted_and_never_shown() -> None:
    outcome = read_outcome(pd.DataFrame({"sick": ["yes", "perhaps", ""]}), BINARY)
    assert outcome.problems == (
        "sick: 1 of 3 values are not among the classes no, yes",
        "sick: 1 of 3 values are missing",
    )


@pytest.mark.parametrize(("task", "expected"), [(GRADED, [0, 1, 1]), (LOW, [1, 1, 0])])
def test_a_graded_label_is_cut_by_the_rule(task: TaskSection, expected: list[int]) -> None:
    assert read_outcome(pd.DataFrame({"num": [0, 2, 15]}), task).target.tolist() == expected


def test_a_graded_label_with_text_gaps_or_infinities_is_refused() -> None:
    outcome = read_outcome(pd.DataFrame({"num": ["1", "?", "", "inf"]}), GRADED)
    assert outcome.problems == (
        "num: 1 of 4 values are not numbers",
        "num: 1 of 4 values are infinite",
        "num: 1 of 4 values are missing",
    )


def test_survival_gives_times_and_events() -> None:
    outcome = read_outcome(pd.DataFrame({"T": [1, 2.5], "E": [0.0, 1.0]}), COX)
    assert outcome.problems == ()
    assert outcome.target.dtype == np.float64
    assert outcome.event is not None
    assert outcome.event.tolist() == [False, True]
    assert outcome.stratum.tolist() == [0, 1]


def test_bad_times_and_events_are_counted() -> None:
    outcome = read_outcome(pd.DataFrame({"T": [0, -1, 3, None, np.inf], "E": [0, 1, 2, None, 1]}), COX)
    assert outcome.problems == (
        "T: 1 of 5 values are infinite",
        "T: 1 of 5 values are missing",
        "T: 2 of 5 values are zero or negative times",
        "E: 1 of 5 values are neither 0 nor 1",
        "E: 1 of 5 values are missing",
    )


def test_nonpositive_times_are_marked_for_a_plan_that_leaves_them_out() -> None:
    ((reason, mask),) = nonpositive_times(pd.DataFrame({"T": [0, -1, 3, None]}), COX)
    assert reason == "T not above 0"
    assert mask.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("task", "columns", "train", "expected"),
    [
        (BINARY, {"sick": ["yes"] * 4}, [0, 1], "the site has one class only"),
        (BINARY, {"sick": ["yes", "yes", "no", "yes"]}, [0, 1], "the training part has one class only"),
        (BINARY, {"sick": ["yes", "no", "no"]}, [0, 1], "the site has fewer than 2 positive rows"),
        (COX, {"T": [1, 2], "E": [0, 0]}, [0], "the site has no events|the site has fewer than 2 events"),
        (COX, {"T": [1, 2, 3], "E": [0, 1, 1]}, [0], "the training part has no events"),
        (THREE, {"kind": ["a", "a", "b"]}, [0, 2], "2 classes have fewer than 2 rows"),
    ],
)
def test_a_thin_site_is_noted_without_the_number_of_its_rows(
    task: TaskSection, columns: dict[str, list[object]], train: list[int], expected: str
) -> None:
    outcome = read_outcome(pd.DataFrame(columns), task)
    assert outcome.problems == ()
    noted = outcome_notes(task, LIMITS, outcome, np.array(train, dtype=np.intp), False)
    assert "|".join(noted) == expected


def test_a_site_for_testing_only_has_no_note_on_its_training_part() -> None:
    frame = pd.DataFrame({"sick": ["yes", "no", "yes"]})
    outcome = read_outcome(frame, BINARY)
    assert outcome_notes(BINARY, LIMITS, outcome, NONE, test_only=True) == ()
