"""Dropping rows by rule, with the reason and the count on record: the rules that only one shape of file
has.

CPRD has one row per patient and landmark age, follow-up in years. Rows with earlier cardiovascular disease
or death, or without follow-up, are left out; follow-up ends at ten years, and an event after that is
censored there. Time and event themselves are checked in `outcome`. INTERVAL leaves out blood samples that
waited too long, and implausible body measures; a row whose delay, height or weight is missing cannot be
judged and is left out too, under a reason of its own. The blood counts are checked against the plan's
ranges in `features`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from fedmap.data.table.columns import flag_faults, numbers
from fedmap.data.table.faults import Fault, Mask, column_fault
from fedmap.data.table.site_dataset import Exclusion
from fedmap.study.plan.contradictions import CPRD_FOLLOW_UP_YEARS
from fedmap.study.plan.sections import TaskSection


@dataclass(frozen=True, eq=False)
class RowRules:
    """Which rows a rule set would drop, and why it could not judge."""

    rules: tuple[tuple[str, Mask], ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class RuledRows:
    """The rows a rule set has left, what it dropped, and why it could not judge."""

    frame: pd.DataFrame
    exclusions: tuple[Exclusion, ...] = ()
    problems: tuple[str, ...] = ()


def apply_rules(frame: pd.DataFrame, judged: RowRules) -> RuledRows:
    """Drops what the rules mark, and says what they could not judge."""
    ruled = drop_rows(frame, judged.rules)
    return RuledRows(ruled.frame, ruled.exclusions, tuple(f.problem(len(frame)) for f in judged.faults))


def drop_rows(frame: pd.DataFrame, rules: tuple[tuple[str, Mask], ...]) -> RuledRows:
    """Drops what any rule marks; a row that several mark counts under the first."""
    kept = np.ones(len(frame), dtype=np.bool_)
    exclusions: list[Exclusion] = []
    for reason, marked in rules:
        dropped = int((kept & marked).sum())
        if dropped:
            exclusions.append(Exclusion(reason, dropped))
        kept &= ~marked
    left = frame if kept.all() else frame.loc[kept].reset_index(drop=True)
    return RuledRows(left, tuple(exclusions))


_EARLIER = (
    ("cvd_before_landmark", "cardiovascular disease before the landmark"),
    ("death_before_landmark", "death before the landmark"),
)


def apply_cprd_rules(frame: pd.DataFrame, task: TaskSection) -> RuledRows:
    """Leaves the rows at risk, with follow-up censored at ten years."""
    judged = _cprd_rules(frame)
    if task.time in frame:
        time = numbers(frame[task.time]).values
        none = ("no follow-up after the landmark", np.isfinite(time) & (time <= 0))
        judged = RowRules((*judged.rules, none), judged.faults)
    ruled = apply_rules(frame, judged)
    return RuledRows(_censor(ruled.frame, task), ruled.exclusions, ruled.problems)


def _cprd_rules(frame: pd.DataFrame) -> RowRules:
    """What is known at the landmark, by the columns that are there."""
    faults: list[Fault] = []
    rules: list[tuple[str, Mask]] = []
    for name, reason in _EARLIER:
        if name in frame:
            flag = numbers(frame[name])
            faults += flag_faults(name, flag)
            rules.append((reason, flag.values == 1.0))
    return RowRules(tuple(rules), tuple(faults))


def _censor(frame: pd.DataFrame, task: TaskSection) -> pd.DataFrame:
    """Ends follow-up at ten years. Leaves alone what `outcome` must still refuse: text, gaps, infinities."""
    if task.time is None or task.event is None or task.time not in frame or task.event not in frame:
        return frame
    time, event = numbers(frame[task.time]), numbers(frame[task.event])
    if time.not_numbers or event.not_numbers:
        return frame
    late = np.isfinite(time.values) & (time.values > CPRD_FOLLOW_UP_YEARS)
    valid_late = late & (event.values == 1.0)
    return frame.assign(
        **{
            task.time: np.where(late, CPRD_FOLLOW_UP_YEARS, time.values),
            task.event: np.where(valid_late, 0.0, event.values),
        }
    )


_LIMITS = (
    ("delay_hours", 0.0, 36.0, "hours"),
    ("height_m", 0.5, 2.5, "m"),
    ("weight_kg", 30.0, 190.0, "kg"),
)


def _interval_rules(frame: pd.DataFrame) -> RowRules:
    """Samples that waited too long and implausible measures, by the columns that are there."""
    faults: list[Fault] = []
    rules: list[tuple[str, Mask]] = []
    for name, low, high, unit in _LIMITS:
        if name not in frame:
            continue
        column = numbers(frame[name])
        text = np.isnan(column.values) & ~column.missing
        faults += column_fault(name, "not a number", "are not numbers", text)
        with np.errstate(invalid="ignore"):
            outside = (column.values < low) | (column.values > high)
        rules.append((f"{name} missing", column.missing))
        rules.append((f"{name} outside {low:g} to {high:g} {unit}", outside))
    return RowRules(tuple(rules), tuple(faults))


@dataclass(frozen=True)
class Format:
    """Which rules on rows a shape of file has, by the plan's `data.format`, beside those of the plan."""

    columns: tuple[str, ...] = ()
    judge: Callable[[pd.DataFrame], RowRules] = lambda _: RowRules()
    """By the columns that are there; without an outcome."""
    apply: Callable[[pd.DataFrame, TaskSection], RuledRows] | None = None
    """To rows with an outcome; None: what `judge` says."""

    def applied(self, frame: pd.DataFrame, task: TaskSection) -> RuledRows:
        return apply_rules(frame, self.judge(frame)) if self.apply is None else self.apply(frame, task)


_PLAIN = Format()
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "cprd": Format(tuple(column for column, _ in _EARLIER), _cprd_rules, apply_cprd_rules),
        "interval": Format(tuple(column for column, *_ in _LIMITS), _interval_rules),
    }
)


def format_of(name: str) -> Format:
    """Without rules of its own where the table has none."""
    return FORMATS.get(name, _PLAIN)
