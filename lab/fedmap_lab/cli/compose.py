"""`fedmap-lab compose prepare | results`: the first and the last service of docker-compose.yml."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedmap.process.command_line import answer, say
from fedmap_lab.cli.federations import tiers_table
from fedmap_lab.cli.output import PLANS, Seed

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
    plan: Annotated[Path, typer.Option(help="Study plan (TOML).")] = PLANS / "interval.toml",
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
