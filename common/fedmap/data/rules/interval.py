"""The row rules of INTERVAL-shaped files: blood samples that waited too long, and implausible body measures.

A row whose delay, height or weight is missing cannot be judged and is left out too, under a reason of its
own. The blood counts themselves are checked against the plan's ranges in `features`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedmap.data.rules.rows import RowRules
from fedmap.data.table.columns import numbers
from fedmap.data.table.faults import Fault, Mask, column_fault

MAX_DELAY_HOURS = 36.0
LIMITS = (
    ("delay_hours", 0.0, MAX_DELAY_HOURS, "hours"),
    ("height_m", 0.5, 2.5, "m"),
    ("weight_kg", 30.0, 190.0, "kg"),
)
RULE_COLUMNS = tuple(column for column, *_ in LIMITS)


def interval_rules(frame: pd.DataFrame) -> RowRules:
    """Samples that waited too long and implausible measures, by the columns that are there."""
    faults: list[Fault] = []
    rules: list[tuple[str, Mask]] = []
    for name, low, high, unit in LIMITS:
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
