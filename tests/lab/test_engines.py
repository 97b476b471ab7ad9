from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.scoring.evaluation import outputs
from fedmap.study.engine import LoopEngine
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.individual import Individual
from fedmap_lab.methods.method import Method, Run, Trained
from fedmap_lab.methods.scheme import FedAvg
from tests.lab.conftest import MakeCohort

UNEQUAL = {"large": (1, 300), "middle": (1, 129), "small": (1, 40), "odd": (1, 201), "tiny": (1, 23)}


def train(plan: StudyPlan, make_cohort: MakeCohort, method: Method) -> tuple[Trained, Trained]:
    federation = load_federation(plan, make_cohort(UNEQUAL))
    loop = method.train(Run(federation, LoopEngine(), 5, 11), lambda _: None)
    vectorised = method.train(Run(federation, VectorisedEngine(workers=2), 5, 11), lambda _: None)
    return loop, vectorised


def furthest(one: SiteParameters, other: SiteParameters) -> float:
    return float((one.theta - other.theta).abs().max())


def test_both_engines_reach_the_same_mu_after_five_rounds_of_a_survival_study(
    survival_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    loop, vectorised = train(survival_plan, make_cohort, FedMap())
    assert loop.prior is not None
    assert vectorised.prior is not None
    assert float((loop.prior.mu - vectorised.prior.mu).abs().max()) < 1e-4
    assert float((loop.prior.psi - vectorised.prior.psi).abs().max()) < 1e-4
    assert torch.allclose(loop.prior.buffers.variance, vectorised.prior.buffers.variance, atol=1e-3)
    assert all(furthest(loop.personal[s], vectorised.personal[s]) < 1e-3 for s in UNEQUAL)


def test_both_engines_reach_the_same_mu_after_five_rounds_of_a_binary_study(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    loop, vectorised = train(binary_plan, make_cohort, FedMap())
    assert loop.prior is not None
    assert vectorised.prior is not None
    assert float((loop.prior.mu - vectorised.prior.mu).abs().max()) < 1e-4


@pytest.mark.parametrize("method", [FedAvg(), Individual()])
def test_baselines_predict_the_same_from_both_engines(
    binary_plan: StudyPlan, make_cohort: MakeCohort, method: Method
) -> None:
    """Predictions, not parameters: without a prior, a bias that batch-norm cancels has no gradient but
    rounding noise, which Adam blows up to full steps. It moves such a bias and changes no prediction."""
    plan = binary_plan.model_copy(update={"training": replace(binary_plan.training, learning_rate=1e-3)})
    federation = load_federation(plan, make_cohort(UNEQUAL))
    loop = method.train(Run(federation, LoopEngine(), 2, 11), lambda _: None)
    vectorised = method.train(Run(federation, VectorisedEngine(workers=2), 2, 11), lambda _: None)
    for site in federation.sites:
        one, other = (
            outputs(federation.model, trained.personal[site.name], site.data.test.features)
            for trained in (loop, vectorised)
        )
        assert torch.allclose(one, other, atol=2e-3)


def test_the_loop_gives_the_same_bits_twice(binary_plan: StudyPlan, make_cohort: MakeCohort) -> None:
    federation = load_federation(binary_plan, make_cohort(UNEQUAL))
    first, second = (FedMap().train(Run(federation, LoopEngine(), 3, 5), lambda _: None) for _ in range(2))
    assert first.prior is not None
    assert second.prior is not None
    assert torch.equal(first.prior.mu, second.prior.mu)
    assert torch.equal(first.prior.psi, second.prior.psi)
    other = FedMap().train(Run(federation, LoopEngine(), 3, 6), lambda _: None)
    assert other.prior is not None
    assert not torch.equal(first.prior.mu, other.prior.mu)


def test_blocks_of_the_vectorised_engine_hold_every_site_once() -> None:
    engine = VectorisedEngine(workers=2)
    for sites in (1, 2, 3, 47, 185):
        for parameters in (10, 3425, 223_002):
            blocks = engine._blocks(list(range(sites)), parameters)
            assert sorted(site for block in blocks for site in block) == list(range(sites))
            assert all(blocks)
