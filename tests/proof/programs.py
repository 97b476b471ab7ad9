"""Runs programs of one environment: commands to their end, and processes that all end with the block.

Nothing is imported from the project: whoever renames its modules need not know of this one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
FIRST, LAYER = ROOT / ".venv" / "bin", ROOT / ".venv-flower-layer" / "bin"
Command = Sequence[object]
"""A program and its arguments: texts and paths."""
_STOP_SECONDS = 20
_COMMAND_SECONDS = 300


class ProgramFailedError(Exception):
    """A command or a process of the proof did not do what it was started for."""


@dataclass
class Programs:
    """Processes by name, with a log each under `logs`."""

    logs: Path
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, command: Command, environment: Mapping[str, str]) -> None:
        """A process that runs until the block ends; what it prints is in its log."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*_ends_with_parent(), *map(str, command)],
                env=surroundings(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def let_run(self, name: str, seconds: float) -> None:
        """Wait that long for a process to end: it must not."""
        try:
            code = self._processes[name].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return
        log = (self.logs / f"{name}.log").read_text(errors="replace")
        raise ProgramFailedError(f"{name} ended with {code}:\n{log[-2000:]}")

    def wait_until_listening(self, name: str, port: int, seconds: float = 60) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            self.let_run(name, 0.1)
        raise ProgramFailedError(f"{name} does not listen after {seconds:.0f} seconds")


def run(command: Command, environment: Mapping[str, str] | None = None) -> str:
    """A command to its end; what it printed."""
    done = subprocess.run(
        [*_ends_with_parent(), *map(str, command)],
        env=surroundings(environment or {}),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_SECONDS,
    )
    if done.returncode != 0:
        told = f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}".strip()
        raise ProgramFailedError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{told}")
    return done.stdout


def surroundings(more: Mapping[str, str]) -> dict[str, str]:
    """One thread for each process, and nothing of the caller's own FedMAP settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDMAP_")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ends_with_parent() -> list[str]:
    """What to put before a command so that Linux ends it when this process is gone."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
