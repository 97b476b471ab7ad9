from __future__ import annotations

from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

import fedmap_aggregator.cli.main
import fedmap_lab.cli.main
import fedmap_site.cli.main

PROGRAMS = {
    "aggregator": fedmap_aggregator.cli.main.app,
    "lab": fedmap_lab.cli.main.app,
    "site": fedmap_site.cli.main.app,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_says_its_version_and_nothing_else(name: str) -> None:
    told = CliRunner().invoke(PROGRAMS[name], ["--version"])
    assert (told.exit_code, told.output) == (0, f"fedmap {version('fedmap')}\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_help_of_a_program_is_still_its_own(name: str) -> None:
    app: typer.Typer = PROGRAMS[name]
    told = CliRunner().invoke(app, ["--help"])
    assert app.info.help is not None
    assert app.info.help.split()[0] in told.output
    assert "--version" in told.output
