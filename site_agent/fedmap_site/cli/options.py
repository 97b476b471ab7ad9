"""The options that commands of `fedmap-site` share, and the settings and the site that they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import Given

if TYPE_CHECKING:
    from fedmap_site.config import SiteConfig
    from fedmap_site.wiring import Site

CONFIG_VARIABLE = "FEDMAP_SITE_CONFIG"
DEFAULT_CONFIG = Path("site.toml")
MOUNTED_CONFIG = Path("/etc/fedmap/site.toml")
"""Where the container's image, by FEDMAP_SITE_CONFIG, and the systemd unit look for it."""

Approver = Annotated[str, typer.Option(help="Who decides: a person's name, for the record.")]


@dataclass(frozen=True)
class Here(Given):
    """What every command is given."""

    config: Annotated[
        Path,
        typer.Option(
            "--config",
            envvar=CONFIG_VARIABLE,
            readable=False,  # asked by `read_config`, which can say whose the file is
            help="The site's configuration file (TOML).",
        ),
    ] = DEFAULT_CONFIG

    def settings(self) -> SiteConfig:
        """The configuration, or a ConfigError with every fault."""
        from fedmap.process.settings import read_config
        from fedmap_site.config import NO_CONFIG, SiteConfig

        return read_config(self.config, SiteConfig, NO_CONFIG)

    def site(self) -> Site:
        """The site with everything that its state folder holds."""
        from fedmap_site.wiring import Site

        return Site(self.settings())


def now() -> datetime:
    return datetime.now(UTC)
