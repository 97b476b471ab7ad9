"""What is wrong with cells of a file: counted by column, marked by row, never quoted.

One shape for training and prediction. Training refuses the file; prediction can leave a single row out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

_NAMED_COLUMNS = 3


@dataclass(frozen=True, eq=False)
class Fault:
    """One thing that is wrong with some cells of a feature."""

    feature: str  # a column, or the prefix of a block
    short: str  # what is wrong with one cell: "missing"
    words: str  # what is wrong with all of them: "are missing"
    cells: int  # that are wrong
    width: int  # columns of the feature
    rows: Mask  # (rows,) with at least one such cell
    columns: tuple[str, ...] = ()  # of a block: those with such a cell

    def problem(self, rows: int) -> str:
        """In words, of so many rows."""
        text = f"{self.feature}: {self.cells} of {rows * self.width} values {self.words}"
        if not self.columns:
            return text
        more = f" and {len(self.columns) - _NAMED_COLUMNS} more" if len(self.columns) > _NAMED_COLUMNS else ""
        return f"{text} (columns {', '.join(self.columns[:_NAMED_COLUMNS])}{more})"


def column_fault(column: str, short: str, words: str, wrong: Mask) -> tuple[Fault, ...]:
    """The fault of a single column (rows,), if there is one."""
    cells = int(wrong.sum())
    return (Fault(column, short, words, cells, 1, np.asarray(wrong, dtype=np.bool_)),) if cells else ()


class FaultTally:
    """The faults of a file that is read a block at a time."""

    def __init__(self) -> None:
        self.rows = 0
        self._faults: dict[tuple[str, str], Fault] = {}
        self._left_out: dict[str, int] = {}

    def add(self, rows: int, faults: tuple[Fault, ...], left_out: tuple[tuple[str, Mask], ...]) -> None:
        """The next block; `left_out` are (reason, rows) of the study's own rules."""
        self.rows += rows
        for fault in faults:
            key = fault.feature, fault.words
            before = self._faults.get(key)
            if before is not None:
                columns = tuple(sorted({*before.columns, *fault.columns}))
                fault = replace(fault, cells=before.cells + fault.cells, columns=columns)
            self._faults[key] = replace(fault, rows=np.zeros(0, dtype=np.bool_))
        for reason, marked in left_out:
            count = int(marked.sum())
            if count:
                self._left_out[reason] = self._left_out.get(reason, 0) + count

    def problems(self) -> tuple[str, ...]:
        """Everything that was found, with counts over all rows."""
        cells = [fault.problem(self.rows) for fault in self._faults.values()]
        rows = [
            f"{count} of {self.rows} rows: {reason}; the study leaves such rows out"
            for reason, count in self._left_out.items()
        ]
        return (*cells, *rows)
