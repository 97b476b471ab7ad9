"""How the methods relate to each other on real fits, on both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.scoring.evaluation import outputs
from fedmap.study.engine import Engine, LoopEngine
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import Federation, load_federation
from fedmap_lab.methods.ditto import Ditto
from fedmap_lab.methods.feddyn import FedDyn
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.fedprox import FedProx
from fedmap_lab.methods.method import Method, Progress, Run, Trained
from fedmap_lab.methods.names import METHOD_NAMES
from fedmap_lab.methods.pooled import Pooled, together
from fedmap_lab.methods.qfedavg import QFedAvg
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.methods.scaffold import Scaffold
from fedmap_lab.methods.scheme import FedAvg
from tests.lab.conftest import MakeCohort

EQUAL = {"east": (1, 100), "west": (1, 100), "clinic": (2, 60)}
OTHERS = (
    *("fedprox", "scaffold", "qfedavg", "feddyn", "ditto"),
    *("pfedme", "pfedbayes", "pooled", "pfedgp", "pfedfda"),
)


@pytest.fixture
def equal(binary_plan: StudyPlan, make_cohort: MakeCohort) -> Federation:
    return load_federation(binary_plan, make_cohort(EQUAL))


def train(federation: Federation, method: Method, rounds: int = 2, engine: Engine | None = None) -> Trained:
    return method.train(Run(federation, engine or VectorisedEngine(workers=1), rounds, 5), lambda _: None)


def mu(state: Trained | Progress) -> torch.Tensor:
    assert state.prior is not None
    return state.prior.mu


def plain(plan: StudyPlan) -> StudyPlan:
    """A linear model on full batches: no dropout, no chance but the start."""
    training = replace(plan.training, batch_size=512, learning_rate=1e-2)
    model = plan.model.model_copy(
        update={"name": "linear", "dropout": 0.0, "batch_norm": False, "hidden": (64, 32)}
    )
    return plan.model_copy(update={"training": training, "model": model})


def test_the_names_of_commands_are_the_registered_methods() -> None:
    assert tuple(METHODS) == METHOD_NAMES


NO_CURVE = ("pooled", "pfedgp")  # no rounds; heads that are made at the end


@pytest.mark.parametrize("name", ["fedmap", "fedavg", *(name for name in OTHERS if name not in NO_CURVE)])
def test_the_curve_of_a_method_is_of_the_models_that_its_sites_use(name: str, equal: Federation) -> None:
    seen: list[Progress] = []
    trained = METHODS[name].train(Run(equal, VectorisedEngine(workers=1), 2, 5), seen.append)
    assert set(seen[-1].personal) == set(trained.personal)
    for site, own in trained.personal.items():
        assert torch.equal(seen[-1].personal[site].theta, own.theta)


def test_fedprox_without_its_term_is_fedavg_to_the_bit(equal: Federation) -> None:
    assert torch.equal(mu(train(equal, FedProx(mu=0.0))), mu(train(equal, FedAvg())))
    assert not torch.equal(mu(train(equal, FedProx(mu=1.0))), mu(train(equal, FedAvg())))


def test_fedavg_has_no_consensus_rounds_whatever_the_plan_says_of_fedmap(equal: Federation) -> None:
    training = replace(equal.settings.training, consensus_share=0.5)
    other = replace(equal, settings=replace(equal.settings, training=training))
    assert torch.equal(mu(train(equal, FedAvg())), mu(train(other, FedAvg())))
    assert not torch.equal(mu(train(equal, FedMap())), mu(train(other, FedMap())))


@pytest.mark.parametrize("engine", [LoopEngine(), VectorisedEngine(workers=1)], ids=["loop", "vectorised"])
def test_consensus_rounds_at_sites_of_one_size_are_feddyns_and_the_last_is_held_by_the_prior(
    engine: Engine, binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    """FedDyn's (α/2)‖θ − w‖² is the prior's α‖θ − μ‖² with half the α."""
    plan = plain(binary_plan)
    training = replace(plan.training, start="global", consensus_share=0.75)
    aggregation = replace(plan.aggregation, weighting="sample_count")
    plan = plan.model_copy(update={"training": training, "aggregation": aggregation})
    federation = load_federation(plan, make_cohort(EQUAL))

    def of_four_rounds(method: Method) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        method.train(Run(federation, engine, 4, 5), lambda p: seen.append(mu(p)))
        return seen

    fedmap = of_four_rounds(METHODS["fedmap"])
    feddyn = of_four_rounds(FedDyn(alpha=2 * plan.prior.alpha))
    never = of_four_rounds(METHODS["fedmap-no-consensus"])
    for number in range(3):
        assert torch.allclose(fedmap[number], feddyn[number], atol=1e-4), number + 1
    assert not torch.allclose(fedmap[3], feddyn[3], atol=1e-3)
    assert not torch.allclose(fedmap[0], never[0], atol=1e-3)


def test_the_global_model_of_ditto_is_fedavgs(equal: Federation) -> None:
    assert torch.equal(mu(train(equal, Ditto())), mu(train(equal, FedAvg())))


def test_scaffold_at_identical_sites_is_fedavg(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    directory: Path = make_cohort(EQUAL)
    (directory / "west.csv").write_text((directory / "east.csv").read_text())
    federation = load_federation(plain(binary_plan), directory)
    twin = federation.tier(1)[0].data
    sites = tuple(replace(site, data=twin) if site.tier == 1 else site for site in federation.sites)
    federation = replace(federation, sites=sites)
    assert torch.allclose(mu(train(federation, Scaffold(), 3)), mu(train(federation, FedAvg(), 3)), atol=1e-5)


def test_q_fedavg_with_q_zero_is_fedavg_at_sites_of_one_size(equal: Federation) -> None:
    assert len({len(site.data.train) for site in equal.tier(1)}) == 1
    assert torch.allclose(mu(train(equal, QFedAvg(q=0.0))), mu(train(equal, FedAvg())), atol=1e-6)


def test_q_fedavg_weighs_sites_by_the_loss_of_the_global_model(equal: Federation) -> None:
    trained = train(equal, QFedAvg(q=2.0), rounds=1)
    first = Run(equal, LoopEngine(), 1, 5).start(equal.settings.prior)
    losses = {}
    for site in equal.tier(1):
        logits = outputs(equal.model, SiteParameters(first.mu, first.buffers), site.data.train.features)[:, 0]
        losses[site.name] = float(
            torch.nn.functional.binary_cross_entropy_with_logits(logits, site.data.train.target.float())
        )
    total = sum(loss**2 for loss in losses.values())
    assert trained.history[0].weights == pytest.approx({n: x**2 / total for n, x in losses.items()}, rel=1e-4)


def test_feddyn_with_a_vanishing_term_goes_twice_the_mean_step_in_its_first_round(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    """h/α does not vanish with α: w' = mean + mean − w."""
    federation = load_federation(plain(binary_plan), make_cohort(EQUAL))
    first = Run(federation, LoopEngine(), 1, 5).start(federation.settings.prior).mu
    plain_step = mu(train(federation, QFedAvg(q=0.0), 1)) - first
    assert torch.allclose(mu(train(federation, FedDyn(alpha=1e-9), 1)) - first, 2 * plain_step, atol=1e-5)


def test_pooled_training_sees_the_rows_of_all_sites(
    survival_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    federation = load_federation(survival_plan, make_cohort(EQUAL))
    parts = [site.data.train for site in federation.tier(1)]
    whole = together(parts)
    assert len(whole) == sum(len(part) for part in parts)
    assert whole.event is not None
    trained = train(federation, Pooled(), 1)
    assert torch.equal(trained.personal["east"].theta, trained.personal["west"].theta)


@pytest.mark.parametrize("name", OTHERS)
def test_both_engines_predict_the_same(binary_plan: StudyPlan, make_cohort: MakeCohort, name: str) -> None:
    training = replace(binary_plan.training, learning_rate=1e-3, fine_tune_epochs=2)
    model_section = binary_plan.model.model_copy(update={"batch_norm": False})
    plan = binary_plan.model_copy(update={"training": training, "model": model_section})
    federation = load_federation(plan, make_cohort(EQUAL))
    found = []
    for engine in (LoopEngine(), VectorisedEngine(workers=1)):
        trained = train(federation, METHODS[name], 1, engine)
        clinic, failed = METHODS[name].personalise(Run(federation, engine, 1, 5), trained, federation.tier(2))
        assert not failed
        found.append((trained.model or federation.model, {**trained.personal, **clinic}))
    (model, one), (_, other) = found
    for site in federation.sites:
        features = site.data.test.features
        loop, vectorised = (outputs(model, models[site.name], features) for models in (one, other))
        assert torch.allclose(loop, vectorised, atol=5e-3)
