"""The file of predictions: CSV or Parquet, grown block by block, whole or not there at all.

One line for each row of the data, in their order: its number (or the identifier that was asked for), the
predictions and, where rows may be skipped, why one has none.
"""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from fedmap.data.streaming import ArrowArray, RowBlock
from fedmap.errors import ConflictError
from fedmap.files.durable import DurableWriter
from fedmap_site.predict.rows import CLASS, Predictions, ReadyModel

FileFormat = Literal["csv", "parquet"]
ROW, REASON = "row", "reason"


class PredictionFile:
    """Use as a context manager: what is not committed when it ends was never there."""

    def __init__(
        self, ready: ReadyModel, path: Path, form: FileFormat, identifier: str | None, with_reasons: bool
    ) -> None:
        self._ready, self._path, self._form, self._first = ready, path, form, identifier or ROW
        self._with_reasons = with_reasons
        own = [*ready.columns, *([CLASS] if ready.labels else []), *([REASON] if with_reasons else [])]
        if identifier in own:
            raise ConflictError(
                f"the identifiers' column has the name of a column of predictions, {identifier}",
                hint="Rename that column in the data file.",
            )
        self._names = (self._first, *own)
        self._rows = 0
        self._durable = DurableWriter(path.parent)
        self._sink = _Sink(self._durable)
        self._table: Any = None  # pyarrow's writer, made with the first block, whose types it takes

    def add(self, block: RowBlock, predictions: Predictions) -> None:
        """The next rows; `predictions` has one entry for each usable one."""
        count, usable = len(block.rows), block.rows.usable
        if block.identifiers is None:
            first = pa.array(np.arange(self._rows + 1, self._rows + count + 1))
        else:
            first = block.identifiers
        self._rows += count
        place = None if usable.all() else _places(usable)
        columns = [first, *(_spread(pa.array(predictions.numbers[n]), place) for n in self._ready.columns)]
        if predictions.classes is not None:
            labels = pa.array(self._ready.labels, pa.string())
            columns.append(_spread(labels.take(pa.array(predictions.classes)), place))
        if self._with_reasons:
            columns.append(pa.array([reason or None for reason in block.rows.reasons()], pa.string()))
        self._write(pa.record_batch(columns, names=list(self._names)))

    def commit(self) -> None:
        """Give the file its name; a file of that name is replaced."""
        if self._table is not None:
            self._table.close()
            self._table = None
        self._durable.commit(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._table is not None:
            self._table.close()  # its last bytes go into a file that is then removed
        self._durable.__exit__(kind, value, traceback)

    def _write(self, batch: ArrowArray) -> None:
        if self._table is None:
            if self._form == "csv":
                self._sink.write(_header(self._names))
                options = pa_csv.WriteOptions(include_header=False)
                self._table = pa_csv.CSVWriter(self._sink, batch.schema, write_options=options)
            else:
                self._table = pa_parquet.ParquetWriter(self._sink, batch.schema)
        self._table.write(batch)


class _Sink(io.RawIOBase):
    """A durable writer as pyarrow wants its files."""

    def __init__(self, durable: DurableWriter) -> None:
        super().__init__()
        self._durable = durable

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._durable.size

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        self._durable.write(view)
        return view.nbytes


def _header(names: tuple[str, ...]) -> bytes:
    """Quoted only where a name needs it, as in the rows."""
    quoted = ('"' + n.replace('"', '""') + '"' if any(c in n for c in ',"\r\n') else n for n in names)
    return (",".join(quoted) + "\n").encode()


def _places(usable: Any) -> ArrowArray:
    """For each row the place of its prediction, null where it has none."""
    return pa.array(np.cumsum(usable) - 1, mask=~usable)


def _spread(column: ArrowArray, place: ArrowArray | None) -> ArrowArray:
    return column if place is None else column.take(place)
