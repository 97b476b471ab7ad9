"""Rows to predict from, out of a CSV or Parquet file, a block at a time: memory does not grow with the file.

The header is judged when the file is opened, cells as they come (`feature_rows`). Columns are taken by name:
order and extra columns do not matter, and are only remarked on. Each pass opens the file anew. As in
`table.file`, no message quotes the file's own header or the reader's own error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from fedmap.data.feature_rows import (
    COLUMNS_HINT,
    FeatureColumns,
    FeatureRows,
    check_rows,
    feature_columns,
    missing_columns,
)
from fedmap.data.table.columns import MISSING_SPELLINGS
from fedmap.data.table.file import nested_problem, no_columns, read_header, reading, refuse_open_quotes
from fedmap.errors import DataError
from fedmap.study.plan.study_plan import StudyPlan

ArrowArray = Any  # pyarrow has no types
BLOCK_BYTES = 4 << 20  # of a CSV file
_BLOCK_CELLS = 2_000_000  # of a Parquet file
_LEAST_ROWS, _MOST_ROWS = 256, 65_536


@dataclass(frozen=True, eq=False)
class RowBlock:
    """The next rows of a file."""

    rows: FeatureRows
    identifiers: ArrowArray | None  # of the column that was asked for, as it is in the file
    done: float  # share of the file that is read


class FeatureFile:
    """A file of rows to predict, whose header fits the model."""

    def __init__(
        self, plan: StudyPlan, inputs: tuple[str, ...], path: Path, identifier: str | None = None
    ) -> None:
        """`identifier` names a column to hand through. `DataError` lists all that the header lacks."""
        self.path = path
        self._plan, self._inputs, self._identifier = plan, inputs, identifier
        self._site = path.stem
        self._columns = feature_columns(plan, inputs)
        header = read_header(self._site, path)
        self._present = self._matched(Counter(header))
        self.notes = self._remarks(header)
        self._quotes_checked = False

    def blocks(self) -> Iterator[RowBlock]:
        """All rows in order. A file without rows is a `DataError`."""
        count = 0
        with self._batches() as batches:
            while True:
                with reading(self._site, self.path):
                    found = next(batches, None)
                if found is None:
                    break
                batch, done = found
                if not batch.num_rows:
                    continue
                count += batch.num_rows
                yield self._block(batch, done)
        if not count:
            hint = "Export the file again, with one line for each person to predict for."
            raise DataError(self._site, ("the file has no rows",), hint=hint)

    def _matched(self, counts: Counter[str]) -> tuple[str, ...]:
        """The columns to read; every column that is missing or named twice is in the error."""
        wanted = [*self._columns.names, *([self._identifier] if self._identifier else [])]
        if not any(counts[name] for name in self._columns.names):
            raise no_columns(self._site, self.path)
        absent = [name for name in self._columns.names if not counts[name]]
        problems = [*missing_columns(self._columns, absent)]
        if self._identifier and not counts[self._identifier]:
            problems.append(f"{self._identifier}: the column to take identifiers from is missing")
        rules = [name for name in self._columns.rules if counts[name]]
        doubled = [name for name in dict.fromkeys([*wanted, *rules]) if counts[name] > 1]
        problems += [f"{name}: the column is named twice" for name in doubled]
        if problems:
            raise DataError(self._site, tuple(problems), hint=COLUMNS_HINT)
        return tuple(dict.fromkeys([*wanted, *rules]))

    def _remarks(self, header: list[str]) -> tuple[str, ...]:
        notes: list[str] = []
        extra = len(set(header) - set(self._present))
        if extra:
            notes.append(f"{extra} other column{'s' if extra > 1 else ''} of the file: not used")
        places = [header.index(name) for name in self._columns.names]
        if places != sorted(places):
            notes.append("the columns are in another order than in the plan: taken by their names")
        unjudged = [name for name in self._columns.rules if name not in self._present]
        if unjudged:
            notes.append(f"no {', '.join(unjudged)} in the file: the study's rules on it were not applied")
        return tuple(notes)

    @contextmanager
    def _batches(self) -> Iterator[Iterator[tuple[ArrowArray, float]]]:
        if self.path.suffix == ".csv":
            with reading(self._site, self.path):
                if not self._quotes_checked:
                    refuse_open_quotes(self.path)
                    self._quotes_checked = True
                file = pa.OSFile(str(self.path))
            with file:
                yield self._csv_batches(file)
        else:
            with reading(self._site, self.path):
                table = pa_parquet.ParquetFile(self.path)
                self._refuse_nested(table.schema_arrow)
            with table:
                yield self._parquet_batches(table)

    def _csv_batches(self, file: ArrowArray) -> Iterator[tuple[ArrowArray, float]]:
        """All cells as text: what a number is must not depend on which block it stands in."""
        size = max(1, file.size())
        reader = pa_csv.open_csv(
            file,
            read_options=pa_csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(self._present),
                column_types=dict.fromkeys(self._present, pa.string()),
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            yield batch, min(1.0, file.tell() / size)

    def _parquet_batches(self, table: ArrowArray) -> Iterator[tuple[ArrowArray, float]]:
        rows = max(_LEAST_ROWS, min(_MOST_ROWS, _BLOCK_CELLS // len(self._present)))
        done = 0
        for batch in table.iter_batches(batch_size=rows, columns=list(self._present)):
            done += batch.num_rows
            yield batch, done / table.metadata.num_rows

    def _refuse_nested(self, schema: ArrowArray) -> None:
        nested = [name for name in self._present if pa.types.is_nested(schema.field(name).type)]
        if nested:
            problems = tuple(nested_problem(name) for name in nested)
            raise DataError(self._site, problems, hint=COLUMNS_HINT)

    def _block(self, batch: ArrowArray, done: float) -> RowBlock:
        used = dict.fromkeys([*self._columns.names, *self._columns.rules])
        names = [name for name in used if name in self._present]
        is_csv = self.path.suffix == ".csv"
        arrays = [_cells(batch.column(name), is_csv, name, self._columns) for name in names]
        frame = pa.table(arrays, names=names).to_pandas(ignore_metadata=True)
        identifiers = batch.column(self._identifier) if self._identifier else None
        return RowBlock(check_rows(self._plan, self._inputs, frame), identifiers, done)


def _cells(column: ArrowArray, is_csv: bool, name: str, columns: FeatureColumns) -> ArrowArray:
    return _as_numbers(column) if is_csv and name not in columns.text else column


def _as_numbers(column: ArrowArray) -> ArrowArray:
    """Text as numbers where every cell is one or is empty; otherwise as it is, for the checks to count."""
    missing = pc.is_in(column, value_set=pa.array(MISSING_SPELLINGS))
    filled = pc.if_else(missing, pa.scalar(None, pa.string()), column)
    found = _cast(filled, pa.float64())
    if found is None:
        found = _cast(pc.utf8_trim_whitespace(filled), pa.float64())
    if found is None:
        found = _cast(filled, pa.bool_())  # a column of true and false
    return column if found is None else found


def _cast(text: ArrowArray, kind: ArrowArray) -> ArrowArray | None:
    try:
        return pc.cast(text, kind)
    except pa.ArrowInvalid:
        return None
