"""One comparison of every method, made once for all tests that look at what it leaves."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest

from tests.forked_programs import run_forked
from tests.lab.conftest import BINARY_PLAN, without_events, write_cohort

PLAN = BINARY_PLAN.replace("hidden = [16, 8]", "hidden = [8, 4]").replace(
    "epochs = 3", "epochs = 1\nfine_tune_epochs = 3"
)
SITES = {"one": (1, 120), "two": (1, 100), "healthy": (1, 60), "clinic": (2, 60), "remote": (3, 50)}
ROUNDS = "2"


def lab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_forked("fedmap-lab", ["compare", *map(str, arguments)], os.environ)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with plan.toml, cohort and the OUT of one comparison, and what it printed."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "plan.toml").write_text(PLAN)
    without_events(write_cohort(folder / "cohort", SITES), "healthy")
    done = lab(*asked(folder), "--methods", "all", "--seeds", "2", "--workers", "2")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def asked(folder: Path) -> tuple[str | Path, ...]:
    return (
        *("--plan", folder / "plan.toml", "--data", folder / "cohort"),
        *("--out", folder / "out", "--rounds", ROUNDS),
    )
