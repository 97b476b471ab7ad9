"""Runs the services' own commands inside their containers, and waits for what another container will bring.

Standard library alone: it runs on the Python of any of the images. It decides nothing about a federation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

LOOK_SECONDS = 1.0


class CommandError(Exception):
    """A command ended with an error, which it has printed itself."""


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a container's log is its standard output


def give(program: str, *arguments: str) -> str:
    """Run one command to its end, and give back what it printed."""
    done = subprocess.run(
        [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise CommandError(f"{program} {' '.join(arguments[:2])} ended with {done.returncode}")
    return done.stdout


def show(program: str, *arguments: str) -> None:
    """Run a command that tells how things go, until it ends well; its lines are this container's."""
    while subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, check=False).returncode != 0:
        time.sleep(LOOK_SECONDS)


def patiently(step: Callable[[], str]) -> str:
    """Again and again until it succeeds: the other side may be starting, or a newer letter on its way."""
    while True:
        try:
            return step()
        except CommandError as failure:
            say(f"{failure}; trying again")
            time.sleep(LOOK_SECONDS)


def asked(program: str, *arguments: str) -> Any:
    """What a command says with --json, once it can."""
    return json.loads(patiently(lambda: give(program, *arguments, "--json")))


def become(program: str, *arguments: str) -> NoReturn:
    """Turn this process into the service itself, which then gets the container's signals."""
    sys.stdout.flush()
    os.execvp(program, [program, *arguments])


def wait_for(path: Path) -> Path:
    """Until another container has put the file there."""
    if not path.exists():
        say(f"waiting for {path}")
    while not path.exists():
        time.sleep(LOOK_SECONDS)
    return path


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_whole(path: Path, text: str) -> None:
    """Never half a file, whenever the container is killed."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
