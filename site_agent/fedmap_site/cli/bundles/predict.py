"""`fedmap-site personalise | predict | check-shift`: models on rows of your own; nothing leaves the
machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmap.process.command_line import WholeTable, print_aside
from fedmap_site.cli.options import (
    BundleOption,
    DataOption,
    ModelOption,
    Reference,
    Trusting,
    now_ms,
    progress,
)


def personalise_command(
    given: Trusting,
    bundle: Reference,
    data: DataOption,
    out: Annotated[
        Path | None,
        typer.Option("--out", file_okay=False, help="Folder for the model; default: by its bundle."),
    ] = None,
    site: Annotated[
        str | None, typer.Option("--site", help="Name that the rows are divided by; default: the file's.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of the fine-tuning; default: the study's.")
    ] = None,
) -> None:
    """Make a model of your own from a tier-2 bundle, and learn whether it helped."""
    opened = given.bundle(bundle)
    from fedmap.study.site_step import use_one_thread
    from fedmap_site.personalise.fine_tuning import personalise
    from fedmap_site.personalise.model import refuse_if_taken
    from fedmap_site.personalise.report import write_results
    from fedmap_site.wiring import software_version

    manifest = opened.manifest
    folder = out or Path(f"{manifest.name}-{manifest.version}-personal")
    refuse_if_taken(folder)
    use_one_thread()
    with progress("fine-tuning") as on_progress:
        done = personalise(
            opened, data, site or data.stem, seed, lambda epochs, most: on_progress(epochs / most)
        )
    write_results(done, opened, folder, now_ms(), software_version())
    comparison = done.comparison
    if not given.as_json:
        print_aside(*(f"note: {note}" for note in done.data.notes))
    given.tell(
        {
            "folder": str(folder),
            "bundle": done.shared.name,
            "outcome": comparison.outcome,
            "verdict": comparison.verdict,
            "epochs": done.fit.epochs,
            "report": str(folder / "report.html"),
        },
        comparison.verdict,
        f"Model and report: {folder} (open {folder / 'report.html'}).",
    )


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
