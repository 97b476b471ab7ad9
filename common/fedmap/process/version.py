"""`--version`, the same for all programs: which version is installed, and nothing else is loaded for it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer


def _print_and_end(asked: bool) -> None:
    if asked:
        typer.echo(f"fedmap {version('fedmap')}")
        raise typer.Exit


def version_option(
    _asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_and_end, is_eager=True, help="Print the installed version and end."
        ),
    ] = False,
) -> None:
    """The callback of a program's Typer: makes `--version` one of its options."""
