"""The container engine of this machine, driven by its own commands: podman with podman-compose, or docker.

Every container, network and volume that a test makes carries the test's own prefix, and goes with it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VERSION = os.environ.get("FEDMAP_VERSION", "0.3.0")
IMAGES = {name: f"fedmap-{name}:{VERSION}" for name in ("aggregator", "site", "lab")}
HARDENED = ("--read-only", "--user", "12345", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
LOOK_SECONDS = 0.5
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Engine:
    """`program` is podman or docker."""

    program: str
    compose_program: tuple[str, ...]

    @property
    def hardened(self) -> tuple[str, ...]:
        """As the issue of a strict platform reads; podman would else give a read-only container a /tmp."""
        return (*HARDENED, *(("--read-only-tmpfs=false",) if self.program == "podman" else ()))

    def run(self, *arguments: str | Path) -> Done:
        """One command of the engine, which has to succeed."""
        done = self.try_run(*arguments)
        assert done.returncode == 0, f"{self.program} {arguments[:3]}: {done.stdout}{done.stderr}"
        return done

    def try_run(self, *arguments: str | Path) -> Done:
        return finished([self.program, *map(str, arguments)])

    def inside(self, image: str, code: str) -> str:
        """What a piece of Python prints in a hardened container of the image, without any network."""
        options = ("--rm", "--network", "none", *self.hardened, "--entrypoint", "python")
        return self.run("run", *options, IMAGES[image], "-c", code).stdout

    def build(self, folder: Path, reference: str, *options: str) -> str:
        """An image of a test's own, with the options that `make images` is given. Its name."""
        given = shlex.split(os.environ.get("IMAGE_OPTIONS", ""))
        self.run("build", *given, *options, "--tag", reference, folder)
        return reference

    def inspect(self, what: str) -> Any:
        return json.loads(self.run("inspect", what).stdout)[0]

    def state(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = self.inspect(container)["State"]
        return found

    def logs(self, container: str) -> str:
        done = self.try_run("logs", container)
        return done.stdout + done.stderr

    def healthy(self, container: str) -> bool:
        """Whether the image's health check passes now. Podman needs systemd to ask by itself, so ask it."""
        if self.program == "podman":
            return self.try_run("healthcheck", "run", container).returncode == 0
        return bool(self.state(container)["Health"]["Status"] == "healthy")

    def compose(self, folder: Path, project: str, *arguments: str, **settings: str) -> Done:
        """One compose command in a folder, under a project name of the test's own."""
        done = finished(
            [*self.compose_program, "--project-name", project, *arguments],
            cwd=folder,
            env={**os.environ, "COMPOSE_PROJECT_NAME": project, **settings},
        )
        assert done.returncode == 0, f"compose {arguments}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done

    def remove_project(self, folder: Path, project: str, *files: str, **settings: str) -> None:
        """`down --volumes`, which has to leave nothing; what it does leave goes before the test fails."""
        self.compose(folder, project, *files, "down", "--volumes", **settings)
        left = {kind: self._named(kind, project) for kind in ("container", "volume", "network")}
        for kind, names in left.items():
            if names:
                self.run(kind, "rm", "--force", *names)
        assert not any(left.values()), f"`down --volumes` has left {left}"

    def _named(self, kind: str, project: str) -> list[str]:
        everything, name = (["--all"], "Names") if kind == "container" else ([], "Name")
        listed = self.run(kind, "ls", *everything, "--format", f"{{{{.{name}}}}}").stdout.split()
        return [one for one in listed if one.startswith((f"{project}_", f"{project}-"))]


def find_engine() -> Engine:
    """What this machine has; a test that was asked for and cannot run fails, and says why."""
    if shutil.which("podman") and shutil.which("podman-compose"):
        return Engine("podman", ("podman-compose",))
    if shutil.which("docker") and finished(["docker", "compose", "version"]).returncode == 0:
        return Engine("docker", ("docker", "compose"))
    pytest.fail("these tests need podman with podman-compose, or docker with its compose plugin")


def wait_until(holds: Callable[[], bool], seconds: float, what: str, why: Callable[[], str]) -> None:
    """Look until it holds; on the way out say what was waited for, and what the containers say."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            pytest.fail(f"after {seconds:g} s still no {what}:\n{why()[-6000:]}")
        time.sleep(LOOK_SECONDS)


def finished(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> Done:
    """To its end. Output goes through a file: containers that live on may keep a pipe open."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = subprocess.run(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False
        ).returncode
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(command), code, out.read(), err.read())
