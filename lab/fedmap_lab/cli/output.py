"""What all commands of `fedmap-lab` share beside `fedmap.process.command_line`: progress, and a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmap.process.command_line import say

PLANS = Path(__file__).parents[1] / "plans"
_AS_LONG_AS = 7 * 24 * 3600.0  # seconds; rich forgets after 30, and one job of a comparison may take minutes

Seed = Annotated[int, typer.Option(min=0, help="Seed of what is random here; splits follow the plan.")]


def warn(sentence: str) -> None:
    """Where the progress goes: what is missing from the result."""
    say.print(f"[yellow]left out[/yellow] {escape(sentence)}", highlight=False)


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
