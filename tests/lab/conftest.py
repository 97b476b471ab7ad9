"""Small cohort directories with invented rows, for tests of the lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmap.study.plan.reading import parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from tests import plans

FEATURES = tuple(plans.number(name, range=[-50, 50]) for name in "abc")
TRAINING = {"epochs": 3, "batch_size": 32, "learning_rate": 0.01}


def toy_plan(task: plans.Table, model: plans.Table) -> str:
    more: dict[str, plans.Table] = {
        "study": {"title": "A toy study"},
        "training": TRAINING,
        "rounds": {"count": 5, "evaluate_every": 2},
        "limits": {"min_rows": 10},
    }
    return plans.plan_text("toy", task, *FEATURES, **more, model=model)


BINARY_PLAN = toy_plan(plans.binary("sick"), plans.mlp(16, 8, dropout=0.1, batch_norm=True))
SURVIVAL_PLAN = toy_plan(plans.cox("years", "sick", 5.0), {"name": "cprd_survival"})


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def binary_plan() -> StudyPlan:
    return parse_plan(BINARY_PLAN, "toy.toml")


@pytest.fixture
def survival_plan() -> StudyPlan:
    return parse_plan(SURVIVAL_PLAN, "toy-survival.toml")


MakeCohort = Callable[..., Path]


@pytest.fixture
def make_cohort(tmp_path: Path) -> MakeCohort:
    """Write a cohort of sites with the given (tier, rows); sites differ in size, shift and risk."""

    def make(sites: dict[str, tuple[int, int]], seed: int = 0) -> Path:
        return write_cohort(tmp_path / "cohort", sites, seed)

    return make


def write_cohort(directory: Path, sites: dict[str, tuple[int, int]], seed: int = 0) -> Path:
    directory.mkdir()
    lines = ["site,tier,region"]
    for number, (site, (tier, rows)) in enumerate(sites.items()):
        lines.append(f"{site},{tier},{'north' if number % 2 else 'south'}")
        write_site(directory / f"{site}.csv", rows, seed * 1000 + number)
    (directory / "sites.csv").write_text("\n".join(lines) + "\n")
    return directory


def without_events(directory: Path, site: str) -> None:
    """Nobody at the site is sick."""
    header, *lines = (directory / f"{site}.csv").read_text().splitlines()
    healthy = [",".join([*line.split(",")[:3], "0", line.split(",")[4]]) for line in lines]
    (directory / f"{site}.csv").write_text("\n".join([header, *healthy]) + "\n")


def write_site(path: Path, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(rng.normal(0, 0.5, 3), 1.0, (rows, 3))
    risk = features @ (np.array([1.0, -0.7, 0.4]) + rng.normal(0, 0.3, 3))
    sick = (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(int)
    years = np.clip(rng.exponential(4 * np.exp(-0.5 * risk)), 0.01, 5).round(2)
    table = np.column_stack([features, sick, years])
    np.savetxt(
        path, table, delimiter=",", header="a,b,c,sick,years", comments="", fmt=["%.6f"] * 3 + ["%d", "%.2f"]
    )
