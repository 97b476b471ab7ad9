"""The studies of the proof, and the invented rows of their sites.

Every plan spells out all that it relies on: a changed default is not what this proof looks for.

    network     binary, batch-norm; a learned convex penalty; weights per_sample; start local; Youden
    quadratic   binary, batch-norm; the recommended prior, consensus rounds; sample_count; start global
    survival    Cox; a convex penalty behind a sketch, a consensus round; weights reference; start global
    classes     multiclass, linear; a convex penalty; weights literal; start local; local scaling
    absence     the quadratic plan again, for sites one of which misses a consensus round
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEED = 11
MISSING_SITE, MISSED_ROUND = "d", 2
"""In the study `absence`: its answer to this round is not released."""

_COLUMNS = "a,b,c,grade,sick,stage,years"
_ROWS = {"a": 160, "b": 120, "c": 190, "d": 140, "t": 90, "u": 80}

_FEATURES = """
[[features]]
name = "a"
kind = "number"
range = [-50, 50]
missing = { fill = 0.0 }
[[features]]
name = "b"
kind = "number"
range = [-50, 50]
[[features]]
name = "c"
kind = "number"
range = [-50, 50]
[[features]]
name = "grade"
kind = "category"
categories = ["low", "high"]
"""

_PLAN = """
[study]
name = "{name}"
title = "The {name} study of the proof"
[task]
{task}
[data]
format = "table"
[split]
test = 0.25
validation = 0.2
seed = 0
{features}
[model]
{model}
[training]
epochs = 3
batch_size = 32
learning_rate = 0.01
weight_decay = 1e-4
patience = 2
fine_tune_epochs = 6
start = "{start}"
consensus_share = {consensus}
[prior]
alpha = 0.05
epsilon = 1e-4
{prior}
[aggregation]
weighting = "{weighting}"
psi_learning_rate = 0.01
psi_steps = 2
[rounds]
count = {rounds}
evaluate_every = 2
quorum = 2
deadline_minutes = 30.0
[limits]
min_rows = 10
min_events = 0
min_cell = 10
[scaling]
mode = "{scaling}"
"""

_BINARY = 'kind = "binary"\nlabel = "sick"\nclasses = [0, 1]\nmetric = "auroc"\nthreshold = {}'
_COX = (
    'kind = "cox"\ntime = "years"\nevent = "sick"\nmetric = "c_index"\ntime_unit = "years"\nhorizon = 5.0\n'
    "grid = [1.0, 2.0, 3.0, 4.0, 5.0]"
)
_CLASSES = 'kind = "multiclass"\nlabel = "stage"\nclasses = [0, 1, 2]\nmetric = "balanced_accuracy"'
_MLP = 'name = "mlp"\nhidden = [8, 6]\ndropout = 0.1\nbatch_norm = true'


@dataclass(frozen=True)
class Proved:
    """One study: its plan, its cohort directory, and who trains in it."""

    name: str
    plan: Path
    cohort: Path
    sites: tuple[str, ...]
    rounds: int

    @property
    def has_absence(self) -> bool:
        return MISSING_SITE in self.sites


def write_plans(folder: Path) -> tuple[Proved, ...]:
    """All plans and both cohorts under `folder`."""
    three, four = folder / "three", folder / "absent"
    _write_cohort(three, {"a": 1, "b": 1, "c": 1, "t": 2, "u": 3})
    _write_cohort(four, {"a": 1, "b": 1, MISSING_SITE: 1})
    found = []
    for name, rounds, text in _texts():
        cohort, third = (four, MISSING_SITE) if name == "absence" else (three, "c")
        plan = folder / f"{name}.toml"
        plan.write_text(text)
        found.append(Proved(name, plan, cohort, ("a", "b", third), rounds))
    return tuple(found)


def _texts() -> list[tuple[str, int, str]]:
    quadratic = {
        "task": _BINARY.format('{ rule = "sensitivity", value = 0.8 }'),
        "model": _MLP,
        "start": "global",
        "consensus": 0.75,
        "prior": "convex = false",
        "weighting": "sample_count",
        "rounds": 4,
        "scaling": "pooled",
    }
    plans: dict[str, dict[str, object]] = {
        "network": {
            "task": _BINARY.format('{ rule = "youden" }'),
            "model": _MLP,
            "start": "local",
            "consensus": 0,
            "prior": "convex = true\nhidden = [8, 4]\nsketch = 0\nseed = 3",
            "weighting": "per_sample",
            "rounds": 3,
            "scaling": "pooled",
        },
        "quadratic": quadratic,
        "survival": {
            "task": _COX,
            "model": 'name = "cprd_survival"\ndropout = 0.1',
            "start": "global",
            "consensus": 0.4,
            "prior": "convex = true\nhidden = [8, 4]\nsketch = 32\nseed = 4",
            "weighting": "reference",
            "rounds": 3,
            "scaling": "pooled",
        },
        "classes": {
            "task": _CLASSES,
            "model": 'name = "linear"',
            "start": "local",
            "consensus": 0,
            "prior": "convex = true\nhidden = [8, 4]\nsketch = 0\nseed = 5",
            "weighting": "literal",
            "rounds": 4,
            "scaling": "local",
        },
        "absence": quadratic,
    }
    return [
        (name, int(str(values["rounds"])), _PLAN.format(name=name, features=_FEATURES, **values))
        for name, values in plans.items()
    ]


def _write_cohort(folder: Path, tiers: dict[str, int]) -> None:
    folder.mkdir(parents=True)
    lines = [f"{site},{tier},{'north' if site < 'b' else 'south'}" for site, tier in tiers.items()]
    (folder / "sites.csv").write_text("\n".join(["site,tier,region", *lines, ""]))
    for site in tiers:
        _write_site(folder / f"{site}.csv", _ROWS[site], ord(site))


def _write_site(path: Path, rows: int, seed: int) -> None:
    """Sites differ in size, shift and risk; every tenth cell of `a` is empty."""
    rng = np.random.default_rng(seed)
    features = rng.normal(rng.normal(0, 0.5, 3), 1.0, (rows, 3))
    high = rng.random(rows) < 0.4
    risk = features @ (np.array([1.0, -0.7, 0.4]) + rng.normal(0, 0.3, 3)) + 0.5 * high
    sick = rng.random(rows) < 1 / (1 + np.exp(-risk))
    stage = np.digitize(risk + rng.normal(0, 0.7, rows), [-0.6, 0.6])
    years = np.clip(rng.exponential(4 * np.exp(-0.5 * risk)), 0.01, 5)
    lines = [_COLUMNS]
    for row in range(rows):
        a = "" if row % 10 == 3 else f"{features[row, 0]:.6f}"
        grade = "high" if high[row] else "low"
        lines.append(
            f"{a},{features[row, 1]:.6f},{features[row, 2]:.6f},{grade},"
            f"{int(sick[row])},{stage[row]},{years[row]:.2f}"
        )
    path.write_text("\n".join(lines) + "\n")
