"""Rows to predict from: features without an outcome, under the same checks as the training rows.

Training refuses a file for one bad cell; here a bad row is marked with its reason and the others stand, so
that the caller can refuse or go on. A cell that is missing cannot be predicted from, whether the plan
refuses such rows or leaves them out; only a value to fill in helps. The study's own rules on rows (who is
outside its population) apply where the file has their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedmap.data.features import encode_features
from fedmap.data.rules import format_of
from fedmap.data.table.faults import Fault, Mask
from fedmap.errors import DataError, ModelError
from fedmap.study.plan.sections import FeatureBlock, FeatureColumn
from fedmap.study.plan.study_plan import StudyPlan

Cell = str | float | bool | None
_NAMED_COLUMNS = 5
COLUMNS_HINT = (
    "Export the file with these columns, named and in units as the plan says; extra columns do no harm."
)


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Some rows in order, and which of them can be predicted."""

    values: Tensor  # (rows, inputs) float32, not scaled; anything at all in rows that are not usable
    usable: Mask  # (rows,)
    faults: tuple[Fault, ...]
    left_out: tuple[tuple[str, Mask], ...]  # (reason, rows) of the study's own rules

    def __len__(self) -> int:
        return len(self.usable)

    @cached_property
    def usable_values(self) -> Tensor:
        """(usable rows, inputs)."""
        return self.values if self.usable.all() else self.values[torch.from_numpy(self.usable)]

    def reasons(self) -> list[str]:
        """Why each row cannot be predicted, column and kind of fault only; empty where it can."""
        reasons = [""] * len(self)
        marked = [(f"{fault.feature}: {fault.short}", fault.rows) for fault in self.faults]
        for reason, rows in (*marked, *self.left_out):
            for row in np.flatnonzero(rows).tolist():
                reasons[row] = f"{reasons[row]}; {reason}" if reasons[row] else reason
        return reasons


@dataclass(frozen=True)
class FeatureColumns:
    """The columns that a model's inputs are made of."""

    names: tuple[str, ...]
    """In the plan's order; those of a block as the bundle lists them, whatever else has its prefix."""
    text: frozenset[str]
    """Categories, kept as they are written."""
    rules: tuple[str, ...]
    """Not inputs: columns of the study's rules on rows, used where they are there."""
    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    """(prefix, columns) of each block."""


def feature_columns(plan: StudyPlan, inputs: Sequence[str]) -> FeatureColumns:
    """What a file has to bring for a model with these inputs (`Manifest.inputs`)."""
    names: list[str] = []
    blocks: list[tuple[str, tuple[str, ...]]] = []
    at = 0
    for feature in plan.features:
        if isinstance(feature, FeatureBlock):
            own = tuple(inputs[at : at + feature.columns])
            blocks.append((feature.prefix, own))
            names += own
            at += feature.columns
        else:
            names.append(feature.name)
            at += len(feature.categories) - 1 if feature.kind == "category" else 1
    categories = (f.name for f in plan.features if isinstance(f, FeatureColumn) and f.kind == "category")
    others = tuple(name for name in format_of(plan.data.format).columns if name not in names)
    return FeatureColumns(tuple(names), frozenset(categories), others, tuple(blocks))


def missing_columns(columns: FeatureColumns, absent: Sequence[str]) -> tuple[str, ...]:
    """Problems in words: a single column each, and one for the columns of a block."""
    in_blocks = {name for _, own in columns.blocks for name in own}
    problems = [f"{name}: the column is missing" for name in absent if name not in in_blocks]
    for prefix, own in columns.blocks:
        lost = [name for name in own if name in absent]
        if lost:
            more = f" and {len(lost) - _NAMED_COLUMNS} more" if len(lost) > _NAMED_COLUMNS else ""
            named = ", ".join(lost[:_NAMED_COLUMNS])
            problems.append(f"{prefix}: {len(lost)} of {len(own)} columns are missing ({named}{more})")
    return tuple(problems)


def check_rows(plan: StudyPlan, inputs: Sequence[str], frame: pd.DataFrame) -> FeatureRows:
    """Checks and encodes rows of a frame that has the columns of `feature_columns` and no other features."""
    encoded = encode_features(frame, plan.features)
    if encoded.layout.names != tuple(inputs):
        raise ModelError(
            "the columns do not give the inputs that the model was made for",
            hint="The bundle does not fit its own study plan; ask for it to be released again.",
        )
    judged = format_of(plan.data.format).judge(frame)
    faults = (*encoded.faults, *judged.faults)
    usable = np.ones(len(frame), dtype=np.bool_)
    for marked in (*(fault.rows for fault in faults), *(rows for _, rows in judged.rules)):
        usable &= ~marked
    left_out = tuple((reason, rows) for reason, rows in judged.rules if rows.any())
    return FeatureRows(torch.from_numpy(encoded.values), usable, faults, left_out)


def check_records(
    plan: StudyPlan, inputs: Sequence[str], records: Sequence[Mapping[str, Cell]]
) -> FeatureRows:
    """Rows that came as a message, one mapping of column to value each; None is an empty cell."""
    columns = feature_columns(plan, inputs)
    lacking = {name: sum(name not in record for record in records) for name in columns.names}
    problems = [
        f"{name}: {count} of {len(records)} rows do not name it" for name, count in lacking.items() if count
    ]
    if problems:
        hint = "Name every column in every row; null stands for an empty cell."
        raise DataError("the request", tuple(problems), hint=hint)
    present = (*columns.names, *(name for name in columns.rules if all(name in row for row in records)))
    frame = pd.DataFrame({name: [_cell(record[name]) for record in records] for name in present})
    return check_rows(plan, inputs, frame)


def _cell(value: Cell) -> str | float | None:
    """true and false are words: in a column of numbers they are a mistake, and pandas would take them for
    1 and 0."""
    return str(value).lower() if isinstance(value, bool) else value
