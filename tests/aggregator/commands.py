"""Runs the programs as their users do: real processes, in a folder, without the settings of the tester."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.forked_programs import run_forked
from tests.ran import Ran

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "lab" / "fedmap_lab" / "plans" / "interval.toml"


def aggregator(folder: Path, *arguments: str | Path, **environment: str) -> Ran:
    """`fedmap-aggregator` to its end."""
    return _run("fedmap-aggregator", folder, arguments, environment)


def agent(folder: Path, *arguments: str | Path) -> Ran:
    """`fedmap-site` to its end."""
    return _run("fedmap-site", folder, arguments, {})


def answered(folder: Path, *arguments: str | Path) -> dict[str, object]:
    """What `fedmap-aggregator … --json` answers with success."""
    value = aggregator(folder, *arguments, "--json").done().json
    assert isinstance(value, dict)
    return value


@contextmanager
def running(folder: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`fedmap-aggregator` while the block lasts; it does not outlive the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmap_aggregator.cli.main", *map(str, arguments)],
        cwd=folder,
        env=_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def _run(program: str, folder: Path, arguments: tuple[str | Path, ...], environment: dict[str, str]) -> Ran:
    return run_forked(program, [*map(str, arguments)], _environment(environment), folder)


def _environment(more: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FEDMAP_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}
