"""The outcome of each row: a class index, or a follow-up time with its event. Checked, never repaired.

A site with one class only, or with no event, is no error here: it is described in notes, and still trains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmap.data.table.columns import Column, Floats, codes, flag_problems, numbers
from fedmap.data.table.faults import Mask
from fedmap.study.plan.sections import LimitsSection, PositiveRule, TaskSection

_Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """One entry per row; not to be used where there are problems."""

    target: _Indices | Floats  # class index, or follow-up time
    event: Mask | None  # survival only
    stratum: _Indices  # what splits are balanced by: the class, or the event
    problems: tuple[str, ...] = ()


def nonpositive_times(frame: pd.DataFrame, task: TaskSection) -> tuple[tuple[str, Mask], ...]:
    """(reason, rows) whose follow-up is zero or less, for a plan that leaves those out."""
    if task.time not in frame:
        return ()
    time = numbers(frame[task.time]).values
    return ((f"{task.time} not above 0", np.isfinite(time) & (time <= 0)),)


def read_outcome(frame: pd.DataFrame, task: TaskSection) -> Outcome:
    """The outcome columns that the frame has; absent ones are reported by whoever read the file."""
    if task.kind == "cox":
        return _survival(frame, task)
    if task.label is None or task.label not in frame:
        return _unusable(len(frame), ())
    if task.positive is not None:
        return _numeric_label(frame[task.label], task.label, task.positive)
    return _class_label(frame[task.label], task.label, task.classes)


def outcome_notes(
    task: TaskSection, limits: LimitsSection, outcome: Outcome, train: NDArray[np.intp], test_only: bool
) -> tuple[str, ...]:
    """What is thin about the site's outcome. Counts under a limit are not spelt out."""
    notes: list[str] = []
    rare = _rare(task, limits, outcome)
    whole, part = np.unique(outcome.stratum), np.unique(outcome.stratum[train])
    if task.kind == "cox":
        if not outcome.stratum.any():
            notes.append("the site has no events")
        elif not test_only and not outcome.stratum[train].any():
            notes.append("the training part has no events")
    elif len(whole) == 1:
        notes.append("the site has one class only")
    elif not test_only and len(part) == 1:
        notes.append("the training part has one class only")
    return (*notes, *rare)


def _rare(task: TaskSection, limits: LimitsSection, outcome: Outcome) -> tuple[str, ...]:
    if task.kind == "multiclass":
        counts = np.bincount(outcome.stratum, minlength=len(task.classes))
        few = int((counts < limits.min_events).sum())
        return (f"{few} classes have fewer than {limits.min_events} rows",) if few else ()
    words = "events" if task.kind == "cox" else "positive rows"
    few_events = int((outcome.stratum == 1).sum()) < limits.min_events
    return (f"the site has fewer than {limits.min_events} {words}",) if few_events else ()


def _unusable(rows: int, problems: tuple[str, ...]) -> Outcome:
    nothing = np.zeros(rows, dtype=np.int64)
    return Outcome(nothing, None, nothing, problems)


def _class_label(column: Column, name: str, classes: tuple[str, ...]) -> Outcome:
    found = codes(column, classes)
    problems = _count(
        name, len(column), ((found.unknown, f"are not among the classes {', '.join(classes)}"),)
    )
    problems += _count(name, len(column), ((int(found.missing.sum()), "are missing"),))
    return Outcome(found.values, None, found.values, problems)


def _numeric_label(column: Column, name: str, positive: PositiveRule) -> Outcome:
    label = numbers(column)
    problems = _count(
        name,
        len(column),
        (
            (label.not_numbers, "are not numbers"),
            (label.infinite, "are infinite"),
            (int(label.missing.sum()), "are missing"),
        ),
    )
    above = np.inf if positive.above is None else positive.above
    below = -np.inf if positive.below is None else positive.below
    classes = ((label.values > above) | (label.values < below)).astype(np.int64)
    return Outcome(classes, None, classes, problems)


def _survival(frame: pd.DataFrame, task: TaskSection) -> Outcome:
    rows = len(frame)
    problems: tuple[str, ...] = ()
    times, happened = np.ones(rows), np.zeros(rows, dtype=np.bool_)
    if task.time is not None and task.time in frame:
        time = numbers(frame[task.time])
        times = time.values
        problems += _count(
            task.time,
            rows,
            (
                (time.not_numbers, "are not numbers"),
                (time.infinite, "are infinite"),
                (int(time.missing.sum()), "are missing"),
                (int((np.isfinite(times) & (times <= 0)).sum()), "are zero or negative times"),
            ),
        )
    if task.event is not None and task.event in frame:
        event = numbers(frame[task.event])
        happened = event.values == 1.0
        problems += flag_problems(task.event, event)
    return Outcome(times, happened, happened.astype(np.int64), problems)


def _count(name: str, rows: int, checks: tuple[tuple[int, str], ...]) -> tuple[str, ...]:
    return tuple(f"{name}: {count} of {rows} values {words}" for count, words in checks if count)
