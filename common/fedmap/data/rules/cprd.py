"""The row rules of CPRD-shaped files: one row per patient and landmark age, follow-up in years.

Rows with earlier cardiovascular disease or death, or without follow-up, are left out; follow-up ends at ten
years, and an event after that is censored there. Time and event themselves are checked in `outcome`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedmap.data.rules.rows import RowRules, RuledRows, apply_rules
from fedmap.data.table.columns import flag_faults, numbers
from fedmap.data.table.faults import Fault, Mask
from fedmap.study.plan.contradictions import CPRD_FOLLOW_UP_YEARS
from fedmap.study.plan.sections import TaskSection

EARLIER = (
    ("cvd_before_landmark", "cardiovascular disease before the landmark"),
    ("death_before_landmark", "death before the landmark"),
)
RULE_COLUMNS = tuple(column for column, _ in EARLIER)


def apply_cprd_rules(frame: pd.DataFrame, task: TaskSection) -> RuledRows:
    """Leaves the rows at risk, with follow-up censored at ten years."""
    judged = cprd_rules(frame)
    if task.time in frame:
        time = numbers(frame[task.time]).values
        none = ("no follow-up after the landmark", np.isfinite(time) & (time <= 0))
        judged = RowRules((*judged.rules, none), judged.faults)
    ruled = apply_rules(frame, judged)
    return RuledRows(_censor(ruled.frame, task), ruled.exclusions, ruled.problems)


def cprd_rules(frame: pd.DataFrame) -> RowRules:
    """What is known at the landmark, by the columns that are there."""
    faults: list[Fault] = []
    rules: list[tuple[str, Mask]] = []
    for name, reason in EARLIER:
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
