"""Flower's own commands, started as processes: a run from its submission to its end, a SuperLink for one run.

Flower reports home, looks for updates and installs what an app names unless it is told not to. Here it always
is told not to. Nothing of the algorithm is known here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedmap.errors import FedmapError, StateError, UnreachableError

QUIET: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
"""No report home, no update check, no installing at run time; one thread: the same bits for any number."""
LOCAL = "fedmap-local"
READY_WITHIN_SECONDS = 180
STOP_WITHIN_SECONDS = 20
_APPS = Path(__file__).parents[1] / "apps"


@dataclass(frozen=True)
class FlowerRun:
    """What to submit: which app, to which SuperLink, with which run configuration."""

    app: Literal["deployment", "simulation"]
    superlink: str  # a connection of Flower's config.toml
    config: Mapping[str, str | int]
    federation: str = ""  # Flower's --federation-config


def environment(home: Path | None = None) -> dict[str, str]:
    """For every process of Flower: quiet, and with the commands of this very installation first."""
    own = str(Path(sys.executable).parent)
    known = {**os.environ, **QUIET, "PATH": f"{own}{os.pathsep}{os.environ.get('PATH', '')}"}
    return known if home is None else known | {"FLWR_HOME": str(home)}


def run_to_its_end(run: FlowerRun, home: Path | None = None) -> None:
    """Submit, show the log, and wait. `StateError` unless Flower says that the run completed."""
    with tempfile.TemporaryDirectory(prefix="fedmap-run-") as folder:
        config = Path(folder) / "run.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in run.config.items()))
        command = ["run", str(_APPS / run.app), run.superlink, "--run-config", str(config)]
        command += ["--federation-config", run.federation] if run.federation else []
        submitted = _json_of(flwr([*command, "--format", "json"], home))
    number = str(submitted.get("run-id") or "")
    if not number:
        raise _refused("Flower did not start the run", str(submitted.get("error-message", "")))
    shown = subprocess.run(
        [command_path("flwr"), "log", number, run.superlink, "--stream"],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=False,
    )
    status = _status(number, run.superlink, home)
    if status != "finished:completed":
        raise StateError(
            f"the Flower run {number} ended as {status}, so there is no result",
            hint="the log above and failed.json in the --out folder of the SuperLink's machine say why"
            + (" (the log could not be shown to its end)" if shown.returncode else ""),
        )


def _status(number: str, superlink: str, home: Path | None) -> str:
    found = _json_of(flwr(["ls", superlink, "--run-id", number, "--format", "json"], home))
    runs = found.get("runs")
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
        raise _refused(f"Flower knows nothing of the run {number}", "")
    return str(runs[0].get("status", "unknown"))


def flwr(arguments: Sequence[str], home: Path | None) -> str:
    """What a command of Flower printed; `StateError` where it failed."""
    done = subprocess.run(
        [command_path("flwr"), *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _refused(f"`flwr {arguments[0]}` ended with {done.returncode}", done.stderr or done.stdout)
    return done.stdout


def _json_of(printed: str) -> dict[str, object]:
    """The JSON object that a command of Flower ends its output with."""
    start = printed.find("{")
    try:
        found = json.loads(printed[start:]) if start >= 0 else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _refused("Flower's answer cannot be read", printed)
    return found


def _refused(what: str, said: str) -> StateError:
    last = " ".join(said.split())[-500:]
    return StateError(
        f"{what}: {last}" if last else what,
        hint="check the connection in Flower's config.toml, the SuperLink's log, and that versions match",
    )


@contextmanager
def simulation_superlink() -> Iterator[Path]:
    """A SuperLink in simulation mode on this machine, for one run; gives a FLWR_HOME that names it LOCAL."""
    with tempfile.TemporaryDirectory(prefix="fedmap-superlink-") as folder:
        home, port = Path(folder), free_port()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LOCAL}"\n\n[superlink.{LOCAL}]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        with (home / "superlink.log").open("wb") as output:
            process = subprocess.Popen(
                [*ends_with_parent(), command_path("flower-superlink"), *options],
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                wait_until_healthy(process, f"http://127.0.0.1:{port}/health", home / "superlink.log")
                yield home
            finally:
                stop_group(process)


def wait_until_healthy(
    process: subprocess.Popen[bytes], url: str, log: Path, trust: ssl.SSLContext | None = None
) -> None:
    """Until a server answers; `UnreachableError` where it ends before, or takes too long."""
    for _ in range(READY_WITHIN_SECONDS * 10):
        try:
            with urllib.request.urlopen(url, timeout=5, context=trust):
                return
        except OSError:  # a URLError is one
            pass
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise UnreachableError("the SuperLink did not start", hint=f"its log ends with: {tail}")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started in its own session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=STOP_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_path(program: str) -> str:
    """The command installed beside this Python, whatever PATH says."""
    path = Path(sys.executable).parent / program
    if not path.exists():
        raise FedmapError(
            f"the command {program} is not installed beside this Python",
            hint="pip install -c constraints-flower.txt 'fedmap-flower[simulation]'",
        )
    return str(path)


def ends_with_parent() -> list[str]:
    """What to put before a command so that Linux ends it when this process is gone."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []
