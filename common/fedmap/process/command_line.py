"""What the command lines of all programs share: where they print, how they answer, options of many commands.

Results go to standard output, everything else to standard error, so that `--json` can be piped.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, TypeVar, get_type_hints

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DOCTOR_FOUND_A_FAULT = 3
_Command = TypeVar("_Command", bound=Callable[..., None])


def _width(is_terminal: bool) -> int | None:
    """A pipe has no width: tables are then wide enough for a name and a reason on one line."""
    return None if is_terminal or "COLUMNS" in os.environ else 160


say = Console(stderr=True, width=_width(sys.stderr.isatty()))
answer = Console(width=_width(sys.stdout.isatty()))


@dataclass(frozen=True)
class Given:
    """The options that every command has: one for each field. A subclass's own come before these."""

    as_json: Json = False

    def tell(self, form: JsonValue, *parts: str | RenderableType | None, indent: int | None = 2) -> None:
        """The result of a command: as one JSON document, or in lines and tables; None stands for nothing."""
        if self.as_json:
            print_json(form, indent)
            return
        for part in parts:
            if isinstance(part, str):
                print_text(part)
            elif isinstance(part, WholeTable):
                needed = answer.measure(part, options=answer.options.update(max_width=10_000)).maximum
                Console(width=max(answer.width, needed)).print(part, highlight=False)
            elif part is not None:
                answer.print(part)


def command_group(words: str) -> typer.Typer:
    """A program, or some of its commands under one name."""
    return typer.Typer(help=words, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def command(group: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """Makes a function a command. Its first parameter is a `Given`, whose fields are options too."""

    def add(function: _Command) -> _Command:
        group.command(name)(with_options(function))
        return function

    return add


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """The function as Typer wants it: with the fields of its first parameter, a `Given`, for that one."""
    hints = get_type_hints(function, include_extras=True)
    first, *own = inspect.signature(function).parameters.values()
    kind: type[Given] = hints[first.name]
    shared = {}
    for part in kind.__mro__[:-1]:
        known = get_type_hints(part, include_extras=True)
        shared.update({name: known[name] for name in part.__annotations__ if name not in shared})
    defaults = {one.name: one.default for one in own} | {one.name: one.default for one in fields(kind)}
    options = {one.name: hints[one.name] for one in own} | shared

    def run(**values: object) -> None:
        function(kind(**{name: values.pop(name) for name in shared}), **values)  # type: ignore[arg-type]

    run.__doc__ = function.__doc__
    run.__annotations__ = options
    form, place = inspect.Parameter, inspect.Parameter.KEYWORD_ONLY
    parameters = [form(name, place, default=defaults[name], annotation=options[name]) for name in options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def print_json(value: object, indent: int | None = 2) -> None:
    """One JSON document on standard output, not wrapped and not coloured; without `indent` on one line."""
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_text(*lines: str) -> None:
    """Lines exactly as they are: commands, digests and tokens in them are copied by people."""
    for line in lines:
        answer.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def print_aside(*lines: str) -> None:
    """Lines that are not the result, exactly as they are."""
    for line in lines:
        say.print(line, markup=False, highlight=False, soft_wrap=True)


class PlainTable(Table):
    """Columns without borders, which copy well out of a terminal."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]] = ()) -> None:
        super().__init__(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for row in rows:
            self.add(*row)

    def add(self, *cells: str | Text, style: str = "") -> None:
        """A row whose texts are taken literally: Rich reads no markup in them."""
        self.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style)


class WholeTable(PlainTable):
    """A table of which nothing is cut off or folded: names and digests are copied."""


def moment(when: datetime | int) -> str:
    """A point in time for people: UTC, to the minute. Of Unix milliseconds 0 stands for none."""
    if isinstance(when, int):
        if not when:
            return "-"
        when = datetime.fromtimestamp(when / 1000, UTC)
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def version_option(
    _asked: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda asked: _print_version() if asked else None,
            is_eager=True,
            help="Print the installed version and end.",
        ),
    ] = False,
) -> None:
    """The callback of a program's Typer: makes `--version` one of its options; nothing else is loaded."""


def _print_version() -> None:
    typer.echo(f"fedmap {version('fedmap')}")
    raise typer.Exit
