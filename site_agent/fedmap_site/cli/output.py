"""What all commands of `fedmap-site` share: where they print, their options, how they read the settings.

Results go to standard output, everything else to standard error, so that `--json` can be piped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from fedmap_site.config import SiteConfig

CONFIG_VARIABLE = "FEDMAP_SITE_CONFIG"
DEFAULT_CONFIG = Path("site.toml")
MOUNTED_CONFIG = Path("/etc/fedmap/site.toml")
"""Where the container's image, by FEDMAP_SITE_CONFIG, and the systemd unit look for it."""

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


def _width(is_terminal: bool) -> int | None:
    """A pipe has no width: tables are then wide enough for a name and a reason on one line."""
    return None if is_terminal or "COLUMNS" in os.environ else 160


say = Console(stderr=True, width=_width(sys.stderr.isatty()))
answer = Console(width=_width(sys.stdout.isatty()))

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Config = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        readable=False,  # asked by `read_config`, which can say whose the file is
        help="The site's configuration file (TOML).",
    ),
]
Approver = Annotated[str, typer.Option(help="Who decides: a person's name, for the record.")]


def print_json(value: JsonValue) -> None:
    """One JSON document on standard output, not wrapped and not coloured."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_text(*lines: str) -> None:
    """Lines exactly as they are: digests and commands in them are copied by people."""
    for line in lines:
        answer.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table. Nothing in it is markup, and nothing is cut off: names and digests are copied."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    needed = Measurement.get(answer, answer.options.update(max_width=10_000), table).maximum
    Console(width=max(answer.width, needed)).print(table, highlight=False)


def moment(when: datetime) -> str:
    """A point in time for people: UTC, to the minute."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def now() -> datetime:
    return datetime.now(UTC)


def load_config(path: Path) -> SiteConfig:
    """The configuration, or a ConfigError with every fault."""
    from fedmap.process.settings import read_config
    from fedmap_site.config import NO_CONFIG, SiteConfig

    return read_config(path, SiteConfig, NO_CONFIG)
