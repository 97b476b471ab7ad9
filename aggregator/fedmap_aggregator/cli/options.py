"""The options that commands of `fedmap-aggregator` share, and what they lead to: settings, a connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import ConfigError
from fedmap.process.command_line import Given

if TYPE_CHECKING:
    from fedmap_aggregator.config import AggregatorConfig
    from fedmap_aggregator.operator.client import OperatorClient

CONFIG_VARIABLE = "FEDMAP_AGGREGATOR_CONFIG"
PROFILE_VARIABLE = "FEDMAP_OPERATOR_PROFILE"
DEFAULT_CONFIG = Path("aggregator.toml")

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        readable=False,  # asked by `read_config`, which can say whose the file is
        help="The aggregator's configuration file (TOML).",
    ),
]
Tier = Annotated[int, typer.Option(min=2, max=3, help="2: with the prior, to fine-tune; 3: to predict only.")]
Expires = Annotated[
    str | None, typer.Option(metavar="DATE", help="Last day on which it may be used, as 2027-12-31.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Study = Annotated[str, typer.Argument(help="Name of the study.")]


@dataclass(frozen=True)
class Here(Given):
    """For commands that work on the aggregator's own machine."""

    config: ConfigFile = DEFAULT_CONFIG

    def settings(self) -> AggregatorConfig:
        """The configuration, or a ConfigError with every fault."""
        from fedmap.process.settings import read_config
        from fedmap_aggregator.config import NO_CONFIG, AggregatorConfig

        return read_config(self.config, AggregatorConfig, NO_CONFIG)


@dataclass(frozen=True)
class Anywhere(Here):
    """For commands that ask the aggregator, over mutual TLS, as an operator."""

    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            envvar=PROFILE_VARIABLE,
            help="Operator profile. Default: the one that init left in the state folder of --config.",
        ),
    ] = None

    def chosen_profile(self) -> Path:
        """The profile that was asked for, else the one in the state folder of the configuration."""
        if self.profile is not None:
            return self.profile
        if not self.config.is_file():
            raise ConfigError(
                str(self.config),
                ("there is no such file, and no operator profile was given",),
                hint=f"give --profile (or {PROFILE_VARIABLE}) your operator profile; on the aggregator's own "
                f"machine --config (or {CONFIG_VARIABLE}) is enough",
            )
        from fedmap_aggregator.identity.initialise import profile_path

        return profile_path(self.settings())

    def connect(self) -> OperatorClient:
        """A connection as the operator of the profile."""
        from fedmap_aggregator.identity.profile import read_profile

        chosen = read_profile(self.chosen_profile())
        from fedmap_aggregator.operator.client import OperatorClient

        return OperatorClient(chosen)
