"""Rows dropped by rule: CPRD and INTERVAL shapes, with every dropped row on record."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedmap.data.rules import apply_cprd_rules, drop_rows, format_of
from fedmap.data.table.site_dataset import Exclusion
from fedmap.study.plan.sections import TaskSection

COX = TaskSection(
    kind="cox", metric="c_index", time="end_time", event="event", time_unit="years", horizon=10.0
)


def cprd(**columns: list[object]) -> pd.DataFrame:
    rows = len(next(iter(columns.values())))
    plain: dict[str, list[object]] = {
        "end_time": [5.0] * rows,
        "event": [0] * rows,
        "cvd_before_landmark": [0] * rows,
        "death_before_landmark": [0] * rows,
    }
    return pd.DataFrame(plain | columns)


def interval(**columns: list[object]) -> pd.DataFrame:
    rows = len(next(iter(columns.values())))
    plain: dict[str, list[object]] = {
        "delay_hours": [10.0] * rows,
        "height_m": [1.7] * rows,
        "weight_kg": [70.0] * rows,
    }
    return pd.DataFrame(plain | columns)


def test_a_row_that_two_rules_drop_counts_once_under_the_first() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3]})
    ruled = drop_rows(frame, (("one", np.array([True, True, False])), ("two", np.array([True, False, True]))))
    assert ruled.exclusions == (Exclusion("one", 2), Exclusion("two", 1))
    assert len(ruled.frame) == 0


def test_rules_that_drop_nothing_leave_no_record() -> None:
    ruled = drop_rows(pd.DataFrame({"x": [1]}), (("one", np.array([False])),))
    assert ruled.exclusions == ()


def test_cprd_rows_with_earlier_disease_or_death_or_no_follow_up_are_excluded() -> None:
    frame = cprd(
        end_time=[5, 5, 5, 0, -1], cvd_before_landmark=[0, 1, 0, 0, 1], death_before_landmark=[0, 0, 1, 0, 0]
    )
    ruled = apply_cprd_rules(frame, COX)
    assert ruled.exclusions == (
        Exclusion("cardiovascular disease before the landmark", 2),
        Exclusion("death before the landmark", 1),
        Exclusion("no follow-up after the landmark", 1),
    )
    assert len(ruled.frame) == 1
    assert ruled.problems == ()


def test_cprd_events_after_ten_years_are_censored_at_ten() -> None:
    ruled = apply_cprd_rules(cprd(end_time=[12.0, 10.0, 11.0, 3.0], event=[1, 1, 0, 1]), COX)
    assert ruled.frame["end_time"].tolist() == [10.0, 10.0, 10.0, 3.0]
    assert ruled.frame["event"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert ruled.exclusions == ()


def test_cprd_censoring_hides_no_bad_time_and_no_bad_event() -> None:
    ruled = apply_cprd_rules(cprd(end_time=[np.inf, None, 20.0], event=[1, 1, 7]), COX)
    assert np.isinf(ruled.frame["end_time"].iloc[0])
    assert np.isnan(ruled.frame["end_time"].iloc[1])
    assert ruled.frame["event"].tolist() == [1.0, 1.0, 7.0]


def test_cprd_flags_other_than_0_and_1_are_refused() -> None:
    ruled = apply_cprd_rules(cprd(cvd_before_landmark=[0, 2, None]), COX)
    assert ruled.problems == (
        "cvd_before_landmark: 1 of 3 values are neither 0 nor 1",
        "cvd_before_landmark: 1 of 3 values are missing",
    )


def test_interval_samples_and_donors_outside_the_limits_are_excluded() -> None:
    frame = interval(
        delay_hours=[36.0, 36.1, 10, 10, 10, 10],
        height_m=[1.7, 1.7, 2.6, 0.5, 1.7, 1.7],
        weight_kg=[70, 70, 70, 70, 191, 30],
    )
    ruled = format_of("interval").applied(frame, COX)
    assert ruled.exclusions == (
        Exclusion("delay_hours outside 0 to 36 hours", 1),
        Exclusion("height_m outside 0.5 to 2.5 m", 1),
        Exclusion("weight_kg outside 30 to 190 kg", 1),
    )
    assert len(ruled.frame) == 3


def test_interval_rows_that_cannot_be_judged_are_excluded_under_their_own_reason() -> None:
    ruled = format_of("interval").applied(interval(height_m=[1.7, None, None]), COX)
    assert ruled.exclusions == (Exclusion("height_m missing", 2),)


def test_interval_text_where_a_measure_belongs_is_refused() -> None:
    ruled = format_of("interval").applied(interval(weight_kg=["70", "heavy", "80"]), COX)
    assert ruled.problems == ("weight_kg: 1 of 3 values are not numbers",)
