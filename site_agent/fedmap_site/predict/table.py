"""T3: predictions for every row of a file, in one pass and bounded memory. Nothing is written by halves.

Steps: (1) where the plan scales by a site's own rows, a first pass for their statistics; (2) each block is
checked, predicted and put into a file without a name; (3) rows that cannot be predicted are an error with
counts, unless they may be skipped; (4) the rows together are compared with the federation's; (5) the report
of that is written, then the predictions get their name.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from fedmap.algorithm.pooling.statistics import (
    FeatureStatistics,
    Scaler,
    feature_statistics,
    make_scaler,
    pool_statistics,
)
from fedmap.data.streaming import ArrowArray, FeatureFile, RowBlock
from fedmap.data.table.faults import FaultTally
from fedmap.errors import ConflictError, DataError, StateError
from fedmap.files.durable import DurableWriter
from fedmap.study.plan.inputs import planned_inputs
from fedmap_site.predict.rows import CLASS, Predictions, Predictor, ReadyModel
from fedmap_site.predict.shift_report import advice, no_reference, write_shift

if TYPE_CHECKING:
    from fedmap.shift.check import ShiftAccumulator, ShiftReport

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


OnProgress = Callable[[float], None]  # share of the file that is done


@dataclass(frozen=True)
class PredictOptions:
    """As on the command line."""

    form: FileFormat = "csv"
    identifier: str | None = None
    skip_bad_rows: bool = False
    check_shift: bool = True
    despite_shift: bool = False


@dataclass(frozen=True)
class PredictionRun:
    """What was done, in counts."""

    rows: int
    skipped: int
    problems: tuple[str, ...]  # of the rows that were skipped
    notes: tuple[str, ...]
    shift: ShiftReport | None
    shift_file: Path | None


def predict_file(
    ready: ReadyModel, data: Path, out: Path, options: PredictOptions, on_progress: OnProgress
) -> PredictionRun:
    """Predict for every row of `data`."""
    if out.exists() and out.samefile(data):
        raise ConflictError(
            f"{out} is the data file itself", hint="Give another --out; the data file is never changed."
        )
    file = FeatureFile(ready.plan, ready.inputs, data, options.identifier)
    predictor = Predictor(ready, own_scaler(ready, file))  # (1)
    notes = (*file.notes, *([ready.note] if ready.note else ()))
    shift = _accumulator(ready) if options.check_shift else None
    if options.check_shift and shift is None:
        notes = (*notes, f"not compared with the federation: {no_reference(ready).message}")
    tally, skipped = FaultTally(), 0
    with PredictionFile(ready, out, options.form, options.identifier, options.skip_bad_rows) as table:
        for block in file.blocks():  # (2)
            tally.add(len(block.rows), block.rows.faults, block.rows.left_out)
            skipped += int((~block.rows.usable).sum())
            if skipped == 0 or options.skip_bad_rows:  # otherwise only counting is left to do
                values = block.rows.usable_values
                table.add(block, predictor.predict(values))
                if shift is not None:
                    shift.add(predictor.scaler.apply(values))
            on_progress(block.done)
        if skipped and (not options.skip_bad_rows or skipped == tally.rows):  # (3)
            raise _bad_rows(data, tally, skipped)
        report, report_file = None, None
        if shift is not None:  # (4)
            report = shift.report()
            if report.verdict == "do_not_use" and not options.despite_shift:
                raise _too_far(report, ready)
            report_file = write_shift(report, ready, out)  # (5)
        table.commit()
    return PredictionRun(tally.rows, skipped, tally.problems(), notes, report, report_file)


def check_file(ready: ReadyModel, data: Path, on_progress: OnProgress) -> tuple[ShiftReport, tuple[str, ...]]:
    """The verdict on a file without predicting; rows that could not be predicted are left out and counted."""
    shift = _accumulator(ready)
    if shift is None:
        raise no_reference(ready)
    file = FeatureFile(ready.plan, ready.inputs, data)
    scaler = own_scaler(ready, file) or ready.scaler
    tally, skipped = FaultTally(), 0
    for block in file.blocks():
        tally.add(len(block.rows), block.rows.faults, block.rows.left_out)
        skipped += int((~block.rows.usable).sum())
        shift.add(scaler.apply(block.rows.usable_values))
        on_progress(block.done)
    if skipped == tally.rows:
        raise _bad_rows(data, tally, skipped)
    left_out = (f"{skipped} of {tally.rows} rows were left out of the comparison",) if skipped else ()
    return shift.report(), (*file.notes, *left_out, *tally.problems())


def own_scaler(ready: ReadyModel, file: FeatureFile) -> Scaler | None:
    """Of the file's own usable rows, where the plan has it so; None: the model's."""
    if not ready.scales_by_own_rows:
        return None
    pooled: FeatureStatistics | None = None
    for block in file.blocks():
        own = feature_statistics(block.rows.usable_values)
        pooled = own if pooled is None else pool_statistics({"0": pooled, "1": own})
    assert pooled is not None  # a file without rows is an error of `blocks`
    return make_scaler(pooled, planned_inputs(ready.plan).scaled)


def _accumulator(ready: ReadyModel) -> ShiftAccumulator | None:
    from fedmap.shift.check import ShiftAccumulator

    return None if ready.reference is None else ShiftAccumulator(ready.reference)


def _bad_rows(data: Path, tally: FaultTally, rows: int) -> DataError:
    hint = "Correct these cells in the data file. Nothing was written."
    if rows < tally.rows:
        hint = (
            "Correct these cells in the data file; or give --skip-bad-rows, which leaves the predictions of "
            "these rows empty and says why. Nothing was written."
        )
    return DataError(
        data.stem, (f"{rows} of {tally.rows} rows cannot be predicted", *tally.problems()), hint=hint
    )


def _too_far(report: ShiftReport, ready: ReadyModel) -> StateError:
    told = "".join(f"\n  - {sentence}" for sentence in report.sentences)
    return StateError(
        f"no predictions were written: the rows are too far from the federation's{told}",
        hint=f"{advice(report, ready)} `fedmap-site check-shift` shows the figures. To predict all the same, "
        "give --despite-shift.",
    )
