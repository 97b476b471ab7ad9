"""Single columns of a file as numbers, flags or codes of a closed set; what cannot be converted is counted.

It converts and counts; whether a missing cell is an error is for the caller, who knows the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmap.data.table.faults import Fault, Mask, column_fault
from fedmap.study.plan.sections import canonical_text

Column: TypeAlias = "pd.Series[Any]"
Floats = NDArray[np.float64]

_MISSING_WORDS = ("NA", "N/A", "NaN", "Null", "None", "<NA>", "#N/A")
MISSING_SPELLINGS = ("", *sorted({spelt for w in _MISSING_WORDS for spelt in (w, w.lower(), w.upper())}))
"""How exports write an empty cell."""
_MISSING = frozenset(word.lower() for word in MISSING_SPELLINGS)


@dataclass(frozen=True)
class Numbers:
    """A column as numbers."""

    values: Floats  # (rows,) NaN where missing or not a number
    missing: Mask  # (rows,) empty cells
    not_numbers: int  # cells that hold something else

    @property
    def infinite(self) -> int:
        """How many are infinite, or too large for a 32-bit float, which comes to the same."""
        with np.errstate(over="ignore"):
            return int(np.isinf(self.values.astype(np.float32)).sum())


@dataclass(frozen=True)
class Codes:
    """A column as indices into a closed set."""

    values: NDArray[np.int64]  # (rows,) -1 where missing or unknown
    missing: Mask  # (rows,) empty cells
    unknown: int  # cells outside the set


def numbers(column: Column) -> Numbers:
    """Reads a column as numbers; true and false count as 1 and 0."""
    if is_plain_number(column.dtype):
        values: Floats = np.asarray(column.to_numpy(), dtype=np.float64)
        return Numbers(values, np.isnan(values), 0)
    missing = is_missing(column)
    if column.dtype.kind in "mM":  # pandas would read a date as a count of nanoseconds
        return Numbers(np.full(len(column), np.nan), missing, int((~missing).sum()))
    plain = column.astype(object).where(~missing, None)
    values = np.asarray(pd.to_numeric(plain, errors="coerce"), dtype=np.float64)
    return Numbers(values, missing, int((np.isnan(values) & ~missing).sum()))


def is_plain_number(dtype: object) -> bool:
    """Whether a column is numbers already, with NaN for an empty cell (as files give them)."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def codes(column: Column, categories: Sequence[str]) -> Codes:
    """Reads a column as categories of the plan, in the plan's order, never in that of the site's file."""
    index = {canonical_text(category): code for code, category in enumerate(categories)}
    found, distinct = pd.factorize(column.astype(object))
    lookup = np.full(len(distinct) + 1, -1, dtype=np.int64)
    empty = np.zeros(len(distinct) + 1, dtype=np.bool_)
    for position, value in enumerate(distinct):
        text = canonical_text(value)
        lookup[position] = index.get(text, -1)
        empty[position] = text not in index and text.lower() in _MISSING
    empty[-1] = True  # factorize marks a null with -1
    values, missing = lookup[found], empty[found]
    return Codes(values, missing, int(((values < 0) & ~missing).sum()))


def is_missing(column: Column) -> Mask:
    """Empty cells, also where an export wrote a word for them."""
    missing = column.isna().to_numpy(dtype=np.bool_)
    if column.dtype.kind in "biufmM":
        return missing
    found, distinct = pd.factorize(column.astype(object))
    words = np.array([str(value).strip().lower() in _MISSING for value in distinct] + [True], dtype=np.bool_)
    return np.asarray(missing | words[found], dtype=np.bool_)


def flag_problems(name: str, column: Numbers) -> tuple[str, ...]:
    """Why a column is not all 0 and 1."""
    return tuple(fault.problem(len(column.values)) for fault in flag_faults(name, column))


def flag_faults(name: str, column: Numbers) -> tuple[Fault, ...]:
    """The cells that are neither 0 nor 1."""
    wrong = ~np.isin(column.values, (0.0, 1.0)) & ~column.missing
    return (
        *column_fault(name, "neither 0 nor 1", "are neither 0 nor 1", wrong),
        *column_fault(name, "missing", "are missing", column.missing),
    )
