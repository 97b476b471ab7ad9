"""T3: predictions for every row of a file, in one pass and bounded memory. Nothing is written by halves.

Steps: (1) where the plan scales by a site's own rows, a first pass for their statistics; (2) each block is
checked, predicted and put into a file without a name; (3) rows that cannot be predicted are an error with
counts, unless they may be skipped; (4) the rows together are compared with the federation's; (5) the report
of that is written, then the predictions get their name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmap.algorithm.pooling.statistics import (
    FeatureStatistics,
    Scaler,
    feature_statistics,
    make_scaler,
    pool_statistics,
)
from fedmap.data.streaming import FeatureFile
from fedmap.data.table.faults import FaultTally
from fedmap.errors import ConflictError, DataError, StateError
from fedmap.study.plan.inputs import planned_inputs
from fedmap_site.predict.file import FileFormat, PredictionFile
from fedmap_site.predict.rows import Predictor, ReadyModel
from fedmap_site.predict.shift_report import advice, no_reference, write_shift

if TYPE_CHECKING:
    from fedmap.shift.check import ShiftAccumulator, ShiftReport

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
