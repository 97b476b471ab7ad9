"""`fedmap-lab report` and `fedmap-lab explain`: what a comparison or a simulation says, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedmap.process.command_line import Json, answer, print_json
from fedmap_lab.cli.output import warn


def report_command(
    out: Annotated[Path, typer.Argument(help="The folder that `compare` wrote.")],
    as_json: Json = False,
) -> None:
    """Write report.html, its figures and the statistics anew, from the tables of a comparison."""
    from fedmap_lab.report.writing import write_report

    page = write_report(out, warn)
    if as_json:
        print_json({"report": str(page)})
        return
    answer.print(f"The report is [bold]{escape(str(page))}[/bold]")


def explain_command(
    study: Annotated[Path, typer.Option(help="The folder that `compare` or `simulate` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Where pictures and tables go; default: STUDY/explained.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Of a comparison; default: fedmap.")] = None,
    as_json: Json = False,
) -> None:
    """Explain a prior: which layers it holds tight or loose, and which sites resemble each other."""
    from fedmap_lab.report.explaining import explain

    folder = out or study / "explained"
    found = explain(study, method, folder)
    if as_json:
        method, layers, sites = found.facts.method, found.layers, found.sites
        print_json({"method": method, "layers": layers, "sites": sites, "out": str(folder)})
        return
    for title, sentences in (("Layers", found.layers), ("Sites", found.sites)):
        answer.print(f"[bold]{title}[/bold]")
        for sentence in sentences:
            answer.print(f"· {escape(sentence)}", highlight=False)
    answer.print(f"Pictures and tables are in [bold]{escape(str(folder))}[/bold]")
