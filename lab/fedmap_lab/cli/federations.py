"""`fedmap-lab demo | leave-one-out | compose`: federations of real processes, here or in containers."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedmap.metrics import metric_label
from fedmap.process.command_line import Json, answer, print_json, say
from fedmap_lab.cli.output import PLANS, Cohort, Plan, Rounds, Seed, bar, titled_table
from fedmap_lab.local.federation import LocalFederation, command_path

if TYPE_CHECKING:
    from fedmap_lab.local.tiers import TierResults


import time

from rich.console import Console

_NOT_MEASURED = "–"
_SHIFT = {
    "predict": "like the federation",
    "fine_tune": "different: fine-tune",
    "do_not_use": "too different",
    "": _NOT_MEASURED,
}


def demo_command(
    out: Annotated[Path, typer.Option(help="Where results, picture and logs go.")] = Path("out/demo"),
    plan: Plan = PLANS / "interval.toml",
    rounds: Annotated[int, typer.Option(min=1)] = 12,
) -> None:
    """Run all three tiers as real processes on this machine: training, fine-tuning, prediction."""
    from fedmap_lab.local.demo import run_demo
    from fedmap_lab.local.figures import draw_federation

    _end_cleanly()
    demo = run_demo(plan, out, rounds, lambda step: say.print(f"· {step}", highlight=False), _watch)
    draw_federation(demo, out / "federation.png")
    answer.print(tiers_table(demo))
    for site, report in demo.fine_tuned.items():
        answer.print(f"{escape(site)}: {escape(report.verdict)}", highlight=False)
    answer.print(
        f"Picture: [bold]{escape(str(out / 'federation.png'))}[/bold]. Results, the T2 centre's report and "
        f"the T3 centre's predictions: [bold]{escape(str(out))}[/bold]. All processes have ended; their keys "
        "and state are gone."
    )


def tiers_table(demo: TierResults) -> Table:
    """One line a site: the shared model, the site's own one, and what it did for it."""
    study = demo.study
    label = metric_label(study.metric)
    longest = max(map(len, (*study.sites, *demo.fine_tuned, *demo.predicted)), default=1)
    title = f"{escape(study.title)}: {label} on rows that nobody trained on"
    table = titled_table(title, ("site", "tier", "global model", "own model", "rows look"), longest)
    for site in study.sites:
        values = [study.value(site, model) for model in ("global", "personal")]
        shown = ("withheld" if value is None else f"{value:.3f}" for value in values)
        table.add_row(escape(site), "T1 trained", *shown, _NOT_MEASURED)
    for site, report in demo.fine_tuned.items():
        main = report.main
        shift = "" if report.shift is None else report.shift.verdict
        table.add_row(
            escape(site), "T2 fine-tuned", _shown(main.before), _shown(main.after), _SHIFT.get(shift, shift)
        )
    for site, predicted in demo.predicted.items():
        shift = _SHIFT.get(predicted.shift, predicted.shift)
        table.add_row(escape(site), "T3 predicted", _shown(predicted.figure), _NOT_MEASURED, shift)
    return table


def leave_one_out_command(
    plan: Plan,
    data: Cohort,
    out: Annotated[Path, typer.Option(help="Where the table and the reports go.")],
    rounds: Rounds = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train on all sites but one, then personalise and predict at that one; each site in turn."""
    from fedmap_lab.local.leave_one_out import leave_one_out

    _end_cleanly()
    with bar() as progress:
        task = progress.add_task("leaving out", total=None)
        found = leave_one_out(
            plan,
            data,
            out,
            rounds,
            seed,
            lambda site, done, of: progress.update(
                task, description=f"leaving out {site}" if site else "done", completed=done, total=of
            ),
        )
    if as_json:
        form = [
            {
                "site": one.site,
                "trained_at": one.trained_at,
                "personal": one.personal.model_dump(mode="json"),
                "predicted": {**asdict(one.predicted), "figure": _form(one.predicted.figure)},
            }
            for one in found
        ]
        print_json(form)
        return
    label = metric_label(found[0].personal.metric)
    columns = ("site", "T2 before", "T2 after", "difference", "T3, all rows", "rows look")
    title = f"{label} (95 % interval) at the site that stayed out"
    table = titled_table(title, columns, max(len(one.site) for one in found))
    for one in found:
        main = one.personal.main
        figures = (main.before, main.after, main.difference, one.predicted.figure)
        shift = _SHIFT.get(one.predicted.shift, one.predicted.shift)
        table.add_row(escape(one.site), *map(_shown, figures), shift)
    answer.print(table)
    answer.print(f"Table and reports in [bold]{escape(str(out))}[/bold]")


def _shown(figure: object) -> str:
    return _NOT_MEASURED if figure is None else str(figure)


def _form(figure: object) -> object:
    from fedmap_lab.local.tiers import Figure

    return figure.model_dump(mode="json") if isinstance(figure, Figure) else None


def _end_cleanly() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave by the door that ends the processes


def _watch(federation: LocalFederation, study: str) -> None:
    """The operator's own live view, in this terminal."""
    subprocess.run(
        [str(command_path("fedmap-aggregator")), "status", study, "--watch"],
        env=federation.environment("aggregator"),
        check=True,
    )


compose_app = typer.Typer(
    help="What the services of docker-compose.yml run; not meant to be typed.",
    no_args_is_help=True,
    add_completion=False,
)
_LOOK_SECONDS = 1.0
_WIDTH = 110


@compose_app.command("prepare")
def prepare_command(
    trays: Annotated[Path, typer.Option(help="Folder that holds a tray for each site.")],
    plan: Plan = PLANS / "interval.toml",
    cohort: Annotated[str, typer.Option(help="cprd, interval or eicu; `own`: take --data.")] = "interval",
    data: Annotated[Path, typer.Option(help="Cohort directory of your own.")] = Path("data"),
    scale: Annotated[float, typer.Option(help="Size of the synthetic cohort.")] = 0.25,
    rounds: Annotated[int, typer.Option(min=1)] = 12,
    seed: Seed = 7,
) -> None:
    """Give each site its patients and the plan. The same again changes nothing."""
    from fedmap_lab.local.compose import Wanted, hand_out

    for place, seat in hand_out(Wanted(plan, cohort, data, scale, rounds, seed), trays).items():
        say.print(f"{place} is {seat.site}, a T{seat.tier} site", markup=False, highlight=False)


@compose_app.command("results")
def results_command(
    centre: Annotated[Path, typer.Option(help="Where the operator leaves results; the table goes there.")],
    clinic: Annotated[Path, typer.Option(help="Where the T2 site leaves its report.")],
    practice: Annotated[Path, typer.Option(help="Where the T3 site leaves its predictions.")],
    trays: Annotated[Path, typer.Option(help="Folder with the trays of the T2 and the T3 site.")],
) -> None:
    """Wait for all three tiers, then print the table of results and keep it beside them."""
    from fedmap_lab.local.compose import Left, collect, keep
    from fedmap_lab.local.figures import draw_federation

    left = Left(centre, clinic, practice, trays)
    for path in left.awaited:
        if not path.exists():
            say.print(f"waiting for {path}", markup=False, highlight=False)
        while not path.exists():
            time.sleep(_LOOK_SECONDS)
    found = collect(left)
    keep(left, centre)
    draw_federation(found, centre / "federation.png")
    with (centre / "table.txt").open("w", encoding="utf-8") as file:
        for console in (Console(file=file, width=_WIDTH), answer):
            console.print(tiers_table(found))
            for site, report in found.fine_tuned.items():
                console.print(f"{escape(site)}: {escape(report.verdict)}", highlight=False)
