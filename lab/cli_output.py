"""What all commands of `fedmap-lab` share: where they print, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLANS = Path(__file__).parent / "plans"
say = Console(stderr=True)
answer = Console()

Seed = Annotated[int, typer.Option(min=0, help="Seed of what is random here; splits follow the plan.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=say,
        disable=not say.is_terminal,
    )
