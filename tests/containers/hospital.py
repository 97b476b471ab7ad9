"""A hospital that is set up as the guides say: their commands, as written, in real containers.

`docker` is the guides' word. Where this machine has podman, a program of that name hands each command on to
podman and podman-compose: nothing of a command is changed but what a reader fills in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.centre import READY_WITHIN_SECONDS, Centre
from tests.containers.engine import IMAGES, ROOT, Engine, finished, wait_until
from tests.lab.conftest import BINARY_PLAN, write_site
from tests.services.guide_pages import blocks_of, console_lines

DEPLOY = ROOT / "deploy"
PAGE, README = "hospital-it.md", "../deploy/README.md"
SITE, ROWS = "my-hospital", 240
SETTINGS = {"FEDMAP_UID": "12345", "FEDMAP_GID": "12345", "FEDMAP_IMAGE": IMAGES["site"]}
PLAN = BINARY_PLAN.replace('name = "toy"', 'name = "iron"').replace("[rounds]", "[rounds]\nquorum = 1")
_PODMAN_AS_DOCKER = """#!/bin/sh
if [ "$1" = compose ]; then shift; exec podman-compose "$@"; fi
exec podman "$@"
"""


def container_steps() -> list[str]:
    """The commands of the hospital's page that take a container from its enrolment to its status."""
    return [line for line in console_lines(PAGE) if line.startswith("docker ")]


def readme_block(first: str) -> list[str]:
    """The one block of deploy/README.md that begins with this command."""
    (found,) = [block for block in blocks_of(README) if block.commands[0].startswith(first)]
    return list(found.commands)


def in_a_shell(engine: Engine, script: str, folder: Path, **settings: str) -> str:
    """What commands of a guide print; each of them has to succeed."""
    programs = folder / ".programs"
    if engine.program != "docker" and not programs.exists():
        programs.mkdir()
        (programs / "docker").write_text(_PODMAN_AS_DOCKER)
        (programs / "docker").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = finished(["bash", "-euc", script], folder, {**os.environ, "PATH": path, **settings})
    assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def fill_in(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


@dataclass(frozen=True)
class Hospital:
    """A folder as hospital IT has it, and what each command printed on the way."""

    engine: Engine
    centre: Centre
    folder: Path
    printed: dict[str, str]

    @property
    def project(self) -> str:
        return f"{self.centre.prefix}-site"

    @property
    def container(self) -> str:
        labels = (self.project, "agent")
        keys = ("com.docker.compose.project", "com.docker.compose.service")
        wanted = [f"--filter=label={key}={label}" for key, label in zip(keys, labels, strict=True)]
        (name,) = self.engine.run("ps", "--all", *wanted, "--format", "{{.Names}}").stdout.split()
        return name

    def follow(self, line: str, values: Mapping[str, str]) -> None:
        """One command of the page."""
        settings = {**SETTINGS, "COMPOSE_PROJECT_NAME": self.project}
        self.printed[line] = in_a_shell(self.engine, fill_in(line, values), self.folder, **settings)

    def inside(self, code: str, *arguments: str) -> Any:
        return json.loads(self.engine.run("exec", self.container, "python", "-c", code, *arguments).stdout)

    def wait_until_healthy(self, healthy: bool = True) -> None:
        wait_until(
            lambda: self.engine.healthy(self.container) is healthy,
            READY_WITHIN_SECONDS,
            "healthy agent" if healthy else "unhealthy agent",
            lambda: self.engine.logs(self.container),
        )


@contextmanager
def running_hospital(centre: Centre, folder: Path) -> Iterator[Hospital]:
    """From an empty folder to a running agent, by the commands of deploy/README.md and of the page."""
    engine = centre.engine
    (folder / "joining.pem").write_text(centre.joining_file())
    copying = [line for line in readme_block("mkdir -p fedmap/config") if not line.startswith("docker ")]
    in_a_shell(engine, fill_in("\n".join(copying), {"DEPLOY": str(DEPLOY)}), folder)
    site = Hospital(engine, centre, folder / "fedmap", {})
    config, data = site.folder / "config", site.folder / "data"
    settings = (config / "site.toml").read_text()
    (config / "site.toml").write_text(settings.replace("aggregator.example.org", "aggregator"))
    write_site(data / "patients.csv", ROWS, seed=7)
    (site.folder / "docker-compose.override.yml").write_text(
        f"networks:\n  default:\n    name: {centre.network}\n    external: true\n"
    )
    open_to_any_user(config, data)
    invited = centre.command("invite", SITE, "--tier", "1")
    values = {"FINGERPRINT": invited["ca_fingerprint"], "TOKEN": invited["token"]}
    try:
        enrol, *others = container_steps()
        site.follow(enrol, values)
        values["DIGEST"] = centre.new_study(PLAN)
        for line in others:
            if " exec " in line:
                site.wait_until_healthy()
            site.follow(line, values)
        yield site
    finally:
        engine.remove_project(site.folder, site.project, **SETTINGS)


def open_to_any_user(*folders: Path) -> None:
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
