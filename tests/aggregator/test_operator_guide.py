from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import fedmap_aggregator.cli.main
import fedmap_site.cli.main

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = {"fedmap-aggregator": fedmap_aggregator.cli.main.app, "fedmap-site": fedmap_site.cli.main.app}
_COMMAND = re.compile(r"fedmap-(?:aggregator|site) [a-z][^`#\n]*")


def documented() -> list[str]:
    """Every command that the guide's blocks or sentences name."""
    text = (DOCS / "operator.md").read_text()
    code = re.findall(r"```bash\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    return sorted({found.strip() for part in code for found in _COMMAND.findall(part)})


def test_the_guide_names_every_command_of_the_aggregator() -> None:
    shown = "\n".join(documented())
    root = typer.main.get_command(fedmap_aggregator.cli.main.app)
    assert isinstance(root, TyperGroup)
    for name, command in root.commands.items():
        nested = command.commands if isinstance(command, TyperGroup) else {"": command}
        for inner in nested:
            assert f"fedmap-aggregator {name} {inner}".strip() in shown


@pytest.mark.parametrize("line", documented())
def test_every_command_of_the_guide_exists_with_its_options(line: str) -> None:
    program, *words = shlex.split(line)
    command = typer.main.get_command(PROGRAMS[program])
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", ["operator.md", "errors.md"])
def test_links_lead_to_headings_that_exist(page: str) -> None:
    text = (DOCS / page).read_text()
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", text):
        linked = (DOCS / target).read_text() if target else text
        headings = re.findall(r"^#+ (.+)$", linked, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, (page, target, anchor)
