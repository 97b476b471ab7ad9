"""`python -m tests.containers.measure`: sizes of the images, and what a container adds to a service's start.

Each start is measured beside that of the same command as a plain process, in turn: a busy machine slows
both. Run it after `make images`.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedmap_lab.local.federation import LocalFederation, command_path
from tests.containers.centre import Centre, running_centre
from tests.containers.engine import IMAGES, find_engine

BASE = "docker.io/library/python:3.11-slim-bookworm"
PORT, TURNS, MB = 8443, 3, 1e6
say = Console(width=110).print
Stop = Callable[[], object]
Start = Callable[[], Stop]
"""Ends when what it starts is up; gives back how to end that, which is not measured."""


def main() -> None:
    engine = find_engine()
    base = int(engine.inspect(BASE)["Size"])
    for name in IMAGES.values():
        size = int(engine.inspect(name)["Size"])
        say(f"{name}: {(size - base) / MB:,.0f} MB on top of its base", highlight=False)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with running_centre(engine, folder) as centre, LocalFederation(folder / "plain") as plain:
            plain.initialise()
            starts = plain_start(plain), container_start(centre)
            compare("fedmap-aggregator serve, until its port answers", *starts)
    options = ("run", "--rm", "--network", "none", *engine.hardened)
    compare(
        "fedmap-site --help, to its end",
        run_to_its_end(str(command_path("fedmap-site")), "--help"),
        run_to_its_end(engine.program, *options, IMAGES["site"], "--help"),
    )


def compare(what: str, plain: Start, contained: Start) -> None:
    pairs = [(_seconds(plain), _seconds(contained)) for _ in range(TURNS)]
    ratio = statistics.median(container / process for process, container in pairs)
    process, container = (statistics.median(times) for times in zip(*pairs, strict=True))
    say(
        f"{what}: {ratio:.2f} × the plain process ({container:.2f} s against {process:.2f} s; "
        f"median of {TURNS})",
        highlight=False,
    )


def plain_start(federation: LocalFederation) -> Start:
    def started() -> Stop:
        federation.serve()
        return lambda: federation.stop("aggregator")

    return started


def container_start(centre: Centre) -> Start:
    """A stopped container, started again; its port answers at its address on this machine's own bridge."""
    engine = centre.engine
    engine.run("stop", centre.container)

    def started() -> Stop:
        engine.run("start", centre.container)
        networks = engine.inspect(centre.container)["NetworkSettings"]["Networks"]
        while not _answers(networks[centre.network]["IPAddress"]):
            time.sleep(0.02)
        return lambda: engine.run("stop", centre.container)

    return started


def run_to_its_end(*command: str) -> Start:
    def ended() -> Stop:
        subprocess.run(command, capture_output=True, check=True)
        return lambda: None

    return ended


def _seconds(start: Start) -> float:
    began = time.perf_counter()
    stop = start()
    seconds = time.perf_counter() - began
    stop()
    return seconds


def _answers(host: str) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, PORT)) == 0


if __name__ == "__main__":
    main()
