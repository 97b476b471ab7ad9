"""`fedmap-site personalise`: fine-tune a tier-2 bundle on the site's own rows. Nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import print_aside
from fedmap_site.cli.bundles.options import DataOption, Reference, Trusting, now_ms, progress


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
    from fedmap_site.personalise.results import write_results
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
