"""A fault point kills its process where the environment says so, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fedmap.process.fault_points import VARIABLE, FaultPoint, reach

PROGRAM = """
from fedmap.process.fault_points import reach
for name in ("other", "here", "here", "here"):
    print(name, flush=True)
    reach(name)
"""


def _run(setting: str) -> tuple[int, list[str]]:
    environment = {**os.environ, VARIABLE: setting}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize(
    ("setting", "reached"), [("here", 2), ("here:3", 4), ("", None), ("elsewhere", None), ("here:9", None)]
)
def test_the_process_dies_the_nth_time_it_gets_there_and_nowhere_else(
    setting: str, reached: int | None
) -> None:
    names = ["other", "here", "here", "here"]
    assert _run(setting) == (-signal.SIGKILL if reached else 0, names[:reached])


def test_a_point_strikes_once() -> None:
    point = FaultPoint("here")
    assert [point.strikes(name) for name in ("there", "here", "here")] == [False, True, False]
    reach("here")
