"""What all commands of `fedmap-lab` share beside `fedmap.process.command_line`: progress, and a seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedmap.process.command_line import say

if TYPE_CHECKING:
    from fedmap_lab.federation.sites import Federation

PLANS = Path(__file__).parents[1] / "plans"
_AS_LONG_AS = 7 * 24 * 3600.0  # seconds; rich forgets after 30, and one job of a comparison may take minutes

Plan = Annotated[Path, typer.Option(help="Study plan (TOML).")]
Cohort = Annotated[Path, typer.Option(help="Cohort directory: sites.csv and one file per site.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Default: the plan's rounds.count.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of what is random here; splits follow the plan.")]


def remark(word: str, sentence: str) -> None:
    """Where the progress goes: what is missing from the result."""
    say.print(f"[yellow]{word}[/yellow] {escape(sentence)}", highlight=False)


def warn(sentence: str) -> None:
    remark("left out", sentence)


def show_excluded(federation: Federation) -> None:
    for site in federation.excluded:
        remark("excluded", f"{site.name}: {'; '.join(site.problems)}")


def titled_table(title: str, columns: Sequence[str], longest: int | None = None) -> Table:
    """`longest`: of the first column's cells, which are then not wrapped."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        if longest is not None and not place:
            table.add_column(column, no_wrap=True, min_width=longest)
        else:
            table.add_column(column)
    return table


def bar() -> Progress:
    """Its time left comes from all steps so far, however long one takes."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=say,
        disable=not say.is_terminal,
        speed_estimate_period=_AS_LONG_AS,
    )


def show_done(progress: Progress, task: TaskID, done: int, of: int) -> None:
    """Called before the first step too, with what was done earlier: time left is counted from there."""
    progress.update(task, completed=done, total=of, visible=of > 0)
    progress.advance(task, 0)
