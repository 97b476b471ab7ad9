"""`fedmap-site predict | check-shift`: predictions for a file, and whether they can be trusted here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmap.process.command_line import WholeTable, print_aside
from fedmap_site.cli.bundles.options import BundleOption, DataOption, ModelOption, Trusting, progress


def predict_command(
    given: Trusting,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="File for the predictions.")],
    bundle: BundleOption = None,
    model: ModelOption = None,
    identifier: Annotated[
        str | None, typer.Option("--id", help="Column to copy into the predictions instead of row numbers.")
    ] = None,
    form: Annotated[
        Literal["csv", "parquet"] | None,
        typer.Option("--format", help="Of --out; default: by its ending, else CSV."),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave the prediction of a bad row empty and say why.")
    ] = False,
    no_shift_check: Annotated[
        bool, typer.Option("--no-shift-check", help="Do not compare the rows with the federation's.")
    ] = False,
    despite_shift: Annotated[
        bool, typer.Option("--despite-shift", help="Write predictions although the verdict is: do not use.")
    ] = False,
) -> None:
    """Predict for every row of a file. All of it stays on this machine."""
    ready = given.model(bundle, model)
    from fedmap_site.predict.shift_report import shift_form, shift_lines
    from fedmap_site.predict.table import PredictOptions, predict_file

    options = PredictOptions(
        form=form or ("parquet" if out.suffix == ".parquet" else "csv"),
        identifier=identifier,
        skip_bad_rows=skip_bad_rows,
        check_shift=not no_shift_check,
        despite_shift=despite_shift,
    )
    with progress("predicting") as on_progress:
        run = predict_file(ready, data, out, options, on_progress)
    if not given.as_json:
        print_aside(*(f"note: {note}" for note in (*run.notes, *run.problems)))
    told = f"{run.rows - run.skipped} of {run.rows}" if run.skipped else f"all {run.rows}"
    whose = "your own model from " if ready.personal else ""
    given.tell(
        {
            "model": ready.name,
            "personal": ready.personal,
            "rows": run.rows,
            "skipped": run.skipped,
            "problems": run.problems,
            "notes": run.notes,
            "file": str(out),
            "shift_file": None if run.shift_file is None else str(run.shift_file),
            "shift": None if run.shift is None else shift_form(run.shift, ready),
        },
        *(shift_lines(run.shift, ready) if run.shift is not None else ()),
        f"Wrote {out}: predictions of {whose}{ready.name} for {told} rows.",
    )


def check_shift_command(
    given: Trusting,
    data: DataOption,
    bundle: BundleOption = None,
    model: ModelOption = None,
) -> None:
    """Do these rows look like the federation's? Says in words whether to predict, fine-tune or stop."""
    ready = given.model(bundle, model)
    from fedmap_site.predict.shift_report import shift_form, shift_lines, shift_table
    from fedmap_site.predict.table import check_file

    with progress("comparing") as on_progress:
        report, notes = check_file(ready, data, on_progress)
    if not given.as_json:
        print_aside(*(f"note: {note}" for note in notes))
    table = WholeTable(*shift_table(report, ready))
    given.tell({**shift_form(report, ready), "notes": notes}, table, *shift_lines(report, ready))
