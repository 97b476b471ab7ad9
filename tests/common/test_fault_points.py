"""A fault point kills its process where the environment says so, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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


def test_the_process_dies_the_first_time_it_gets_there() -> None:
    assert _run("here") == (-signal.SIGKILL, ["other", "here"])


def test_the_process_dies_the_nth_time_it_gets_there() -> None:
    assert _run("here:3") == (-signal.SIGKILL, ["other", "here", "here", "here"])


def test_nothing_happens_without_the_variable_or_at_another_point() -> None:
    for setting in ("", "elsewhere", "here:9"):
        assert _run(setting)[0] == 0


def test_a_point_strikes_once() -> None:
    point = FaultPoint("here")
    assert [point.strikes(name) for name in ("there", "here", "here")] == [False, True, False]
    reach("here")
