"""Every method on every kind of task: it gives finite models, or says why it is not defined."""

from __future__ import annotations

import pytest
import torch

from fedmap.metrics import Metric
from fedmap.study.plan.reading import parse_plan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.names import BASELINES
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.simulation.simulate import simulate
from tests.lab.conftest import BINARY_PLAN, SURVIVAL_PLAN, MakeCohort, without_events

SITES = {"one": (1, 90), "two": (1, 70), "quiet": (1, 60), "clinic": (2, 50), "remote": (3, 40)}
SHORT = ("epochs = 3", "epochs = 1\nfine_tune_epochs = 2")
THREE_CLASSES = (
    BINARY_PLAN.replace('kind = "binary"', 'kind = "multiclass"')
    .replace("classes = [0, 1]", "classes = [0, 1, 2]")
    .replace(*SHORT)
)


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in ("pfedgp", "pfedfda")])
def test_survival_with_a_site_without_events(make_cohort: MakeCohort, name: str) -> None:
    survival_plan = parse_plan(SURVIVAL_PLAN.replace(*SHORT), "survival.toml")
    directory = make_cohort(SITES)
    without_events(directory, "quiet")
    study = simulate(load_federation(survival_plan, directory), METHODS[name], VectorisedEngine(1), 1, 0)
    models = {**study.trained.personal, **study.fine_tuned}
    assert {"one", "two", "quiet", "clinic"} <= set(models)
    assert all(bool(torch.isfinite(model.theta).all()) for model in models.values())
    for record in study.trained.history:
        assert "quiet" not in record.weights, (
            "a site without events has nothing to say about the global model"
        )


@pytest.mark.parametrize("name", BASELINES)
def test_three_classes(make_cohort: MakeCohort, name: str) -> None:
    directory = make_cohort(SITES)
    for site in SITES:
        table = (directory / f"{site}.csv").read_text().splitlines()
        rows = []
        for line in table[1:]:
            cells = line.split(",")
            label = "2" if float(cells[0]) > 0.8 else cells[3]
            rows.append(",".join([*cells[:3], label, cells[4]]))
        (directory / f"{site}.csv").write_text("\n".join([table[0], *rows]) + "\n")
    federation = load_federation(parse_plan(THREE_CLASSES, "three.toml"), directory)
    study = simulate(federation, METHODS[name], VectorisedEngine(1), 1, 0)
    scored = {s.tier for s in study.scores if s.result.name == "auroc" and isinstance(s.result, Metric)}
    assert scored >= ({1, 2} if name in ("individual", "pfedgp") else {1, 2, 3})


@pytest.mark.parametrize("name", ["pooled", "ditto", "pfedme", "pfedbayes", "pfedgp", "pfedfda"])
def test_a_linear_model_and_no_t2_site(make_cohort: MakeCohort, name: str) -> None:
    """pFedGP and pFedFDA have no feature to train here; their heads work on the inputs themselves."""
    text = BINARY_PLAN.replace(
        'name = "mlp"\nhidden = [16, 8]\ndropout = 0.1\nbatch_norm = true', 'name = "linear"'
    )
    directory = make_cohort({"one": (1, 90), "two": (1, 70)})
    federation = load_federation(parse_plan(text.replace(*SHORT), "linear.toml"), directory)
    study = simulate(federation, METHODS[name], VectorisedEngine(1), 1, 0)
    assert set(study.trained.personal) == {"one", "two"}
