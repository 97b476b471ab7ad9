"""`fedmap-lab compare | report | explain`: every method on one cohort, and what came of it, for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from fedmap.metrics import metric_label
from fedmap.process.command_line import Json, answer, print_json, say
from fedmap.study.plan.reading import load_plan
from fedmap_lab.cli.output import Cohort, Plan, Rounds, bar, show_done, show_excluded, warn
from fedmap_lab.wording import counted

if TYPE_CHECKING:
    from fedmap_lab.comparison.results import Comparison


_NO_FIGURE = "–"
_TRIALS = 6


def compare_command(
    plan: Plan,
    data: Cohort,
    out: Annotated[
        Path, typer.Option(help="Where records and tables go; an interrupted comparison resumes here.")
    ],
    methods: Annotated[str, typer.Option(help="Comma-separated names, or all.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 0 … N−1.")] = 3,
    tune: Annotated[bool, typer.Option("--tune", help="Tune every method on validation rows first.")] = False,
    trials: Annotated[
        int | None, typer.Option(min=2, help="Trials for each method, with --tune; default: 6.")
    ] = None,
    rounds: Rounds = None,
    engine: Annotated[Literal["loop", "vectorised"], typer.Option()] = "vectorised",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")] = None,
    as_json: Json = False,
) -> None:
    """Compare methods on the same cohort: tuned alike, scored alike, one table per tier."""
    if trials is not None and not tune:
        raise typer.BadParameter("trials are those of tuning: give --tune as well", param_hint="--trials")
    study_plan = load_plan(plan)
    from fedmap_lab.comparison.request import Request, choose_methods

    chosen = choose_methods(methods)
    from fedmap_lab.comparison.running import compare
    from fedmap_lab.comparison.summary import as_json as summary_json
    from fedmap_lab.comparison.summary import caveats, not_in_the_report
    from fedmap_lab.comparison.tables import write_tables
    from fedmap_lab.report.writing import write_report

    request = Request(
        plan=study_plan,
        data=data,
        methods=chosen,
        seeds=seeds,
        rounds=rounds or study_plan.rounds.count,
        trials=(trials or _TRIALS) if tune else 0,
        engine=engine,
    )

    def report(label: str, done: int, of: int) -> None:
        """The bar where there is a terminal, a line for each job where the output is a log."""
        show_done(progress, tasks[label], done, of)
        if not say.is_terminal and of:
            say.print(f"{label}: {done} of {of} done", highlight=False)

    with bar() as progress:
        tasks = {
            label: progress.add_task(label, total=None, visible=False) for label in ("tuning", "comparing")
        }
        comparison = compare(request, out, workers or os.cpu_count() or 1, report)
    write_tables(comparison, out)
    page = write_report(out, warn)
    show_excluded(comparison.federation)
    if unasked := not_in_the_report(comparison):
        warn(unasked)
    if as_json:
        print_json(summary_json(comparison))
        return
    for table in _tables(comparison):
        answer.print(table)
    for caveat in caveats(comparison):
        answer.print(f"· {escape(caveat)}", highlight=False)
    answer.print(
        f"Tables and records are in [bold]{escape(str(out))}[/bold], the report is "
        f"[bold]{escape(str(page))}[/bold]"
    )


def _tables(comparison: Comparison) -> list[Table]:
    from fedmap_lab.comparison.summary import tier_rows

    rows = tier_rows(comparison)
    label = metric_label(comparison.request.plan.task.metric)
    tables = []
    for tier in sorted({row.tier for row in rows}):
        count = len(comparison.federation.tier(tier))
        table = Table(
            title=f"T{tier}, {counted(count)}: {label}, median over sites (means over seeds)",
            title_justify="left",
        )
        for column in ("method", "median", "range over seeds"):
            table.add_column(column, no_wrap=True)
        table.add_column("note")
        for row in (row for row in rows if row.tier == tier):
            if row.median is None:
                table.add_row(row.method, _NO_FIGURE, _NO_FIGURE, escape(row.note))
            else:
                table.add_row(
                    row.method, f"{row.median:.3f}", f"{row.low:.3f} to {row.high:.3f}", escape(row.note)
                )
        tables.append(table)
    return tables


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
