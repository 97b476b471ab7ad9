"""What all commands of `fedmap-aggregator` share: where they print, their common options, how they connect.

Results go to standard output, everything else to standard error, so that `--json` can be piped.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmap.errors import ConfigError

if TYPE_CHECKING:
    from fedmap_aggregator.config import AggregatorConfig
    from fedmap_aggregator.operator.client import OperatorClient
    from fedmap_aggregator.operator.message_json import JsonValue

CONFIG_VARIABLE = "FEDMAP_AGGREGATOR_CONFIG"
PROFILE_VARIABLE = "FEDMAP_OPERATOR_PROFILE"
DEFAULT_CONFIG = Path("aggregator.toml")


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
        help="The aggregator's configuration file (TOML).",
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        envvar=PROFILE_VARIABLE,
        help="Operator profile. Default: the one that init left in the state folder of --config.",
    ),
]


def print_json(value: JsonValue) -> None:
    """One JSON document on standard output, not wrapped and not coloured."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_text(*lines: str) -> None:
    """Lines exactly as they are: commands and tokens in them are copied by people."""
    for line in lines:
        answer.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def moment(unix_ms: int) -> str:
    """A point in time for people: UTC, to the minute."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC") if unix_ms else "-"


def load_config(path: Path) -> AggregatorConfig:
    """The configuration, or a ConfigError with every fault."""
    from fedmap.process.settings import read_config
    from fedmap_aggregator.config import NO_CONFIG, AggregatorConfig

    return read_config(path, AggregatorConfig, NO_CONFIG)


def find_profile(profile: Path | None, config: Path) -> Path:
    """The profile that was asked for, else the one in the state folder of the configuration."""
    if profile is not None:
        return profile
    if not config.is_file():
        raise ConfigError(
            str(config),
            ("there is no such file, and no operator profile was given",),
            hint=f"give --profile (or {PROFILE_VARIABLE}) your operator profile; on the aggregator's own "
            f"machine --config (or {CONFIG_VARIABLE}) is enough",
        )
    from fedmap_aggregator.identity.initialise import profile_path

    return profile_path(load_config(config))


def connect(profile: Path | None, config: Path) -> OperatorClient:
    """A connection as the operator of the profile."""
    from fedmap_aggregator.identity.profile import read_profile

    chosen = read_profile(find_profile(profile, config))
    from fedmap_aggregator.operator.client import OperatorClient

    return OperatorClient(chosen)
