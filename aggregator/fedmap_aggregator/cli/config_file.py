"""The configuration file as a text: the first one that `init` writes, and the settings that are in effect.

Reading and checking a file is `fedmap.process.settings`; what it may hold is `fedmap_aggregator.config`.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from fedmap.errors import ConfigError
from fedmap.files.durable import write_durably
from fedmap.process.command_line import JsonValue
from fedmap.process.settings import parse_config
from fedmap_aggregator.config import AggregatorConfig


def write_first_config(path: Path, address: str, state: Path) -> None:
    """A short configuration file, checked before it is written. Needs the address that sites will dial."""
    if not address:
        raise ConfigError(
            str(path),
            ("there is no such file yet",),
            hint="give --address host:port, as the sites will dial it, and `init` writes the file; "
            "or copy deploy/aggregator/config.toml",
        )
    text = (
        "# Every option with its default is in deploy/aggregator/config.full.toml.\n"
        "[server]\n"
        "# host:port as the sites dial it\n"
        f"address = {json.dumps(address)}\n"
        "# a folder for this aggregator alone; back it up\n"
        f"state = {json.dumps(str(state))}\n"
    )
    parse_config(text, "--address and --state", path.absolute().parent, AggregatorConfig)
    write_durably(path, text.encode(), mode=0o644)


def effective_settings(config: AggregatorConfig) -> dict[str, JsonValue]:
    """Every option as `section.key` with the value that counts; null where it is not set."""
    settings: dict[str, JsonValue] = {}
    for section in type(config).model_fields:
        part = getattr(config, section)
        if isinstance(part, BaseModel):
            for key, value in part.model_dump(mode="json").items():
                settings[f"{section}.{key}"] = value
    settings["server.listen"] = config.listen
    return settings
