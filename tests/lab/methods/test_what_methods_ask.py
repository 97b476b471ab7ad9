"""What each method asks of its sites in a whole run, and what it makes of the answers.

The rules and servers have tests of their own; here a run is written down, and must have used them: the right
rows, epochs, starts and terms, at T1 and at T2. The fits are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.engine import Fits
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import VectorisedEngine
from fedmap_lab.federation.sites import Federation, load_federation
from fedmap_lab.methods.ditto import Ditto
from fedmap_lab.methods.embedding import embedding_of
from fedmap_lab.methods.fedmap import ABLATIONS, SKETCH_WIDTH
from fedmap_lab.methods.method import Method, Run, Trained
from fedmap_lab.methods.pfedbayes import PFedBayes, Variational
from fedmap_lab.methods.pfedfda import CANDIDATES, ClassGaussians, best_share, class_shares, estimate
from fedmap_lab.methods.qfedavg import QFedAvg, fair_step
from fedmap_lab.methods.registry import METHODS
from tests.lab.conftest import MakeCohort

SITES = {"east": (1, 120), "west": (1, 90), "clinic": (2, 60)}
SEED = 5


@dataclass(frozen=True)
class Asked:
    """One call of the engine."""

    settings: FedmapSettings
    prior: Prior
    tasks: Sequence[SiteTask]
    penalised: bool
    rule: LocalRule | None
    fits: Fits

    def fit(self, place: int) -> LocalFit:
        found = self.fits[place]
        assert not isinstance(found, FailedFit)
        return found


class Noting(VectorisedEngine):
    """Fits as ever, and writes down what was asked."""

    def __init__(self) -> None:
        super().__init__(workers=1)
        self.asked: list[Asked] = []

    def fit(
        self,
        model: Model,
        settings: FedmapSettings,
        prior: Prior,
        tasks: Sequence[SiteTask],
        penalised: bool = True,
        rule: LocalRule | None = None,
    ) -> Fits:
        fits = super().fit(model, settings, prior, tasks, penalised, rule)
        self.asked.append(Asked(settings, prior, tasks, penalised, rule, fits))
        return fits


@dataclass(frozen=True)
class Done:
    """T1 trained, then T2."""

    federation: Federation
    trained: Trained
    clinic: SiteParameters
    training: list[Asked]
    tuning: Asked

    @property
    def mu(self) -> torch.Tensor:
        assert self.trained.prior is not None
        return self.trained.prior.mu


@pytest.fixture
def federation(binary_plan: StudyPlan, make_cohort: MakeCohort) -> Federation:
    return load_federation(binary_plan, make_cohort(SITES))


def run(federation: Federation, method: Method, rounds: int = 2) -> Done:
    engine = Noting()
    trained = method.train(Run(federation, engine, rounds, SEED), lambda _: None)
    asked = list(engine.asked)
    clinics, failed = method.personalise(Run(federation, engine, rounds, SEED), trained, federation.tier(2))
    assert not failed
    (tuning,) = engine.asked[len(asked) :]
    return Done(federation, trained, clinics["clinic"], asked, tuning)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm())


def test_individual_training_has_the_epochs_of_all_rounds_at_t1_and_t2(federation: Federation) -> None:
    done = run(federation, METHODS["individual"], rounds=4)
    (training,) = done.training
    for asked in (training, done.tuning):
        assert asked.settings.training.epochs == 4 * federation.settings.training.epochs
        assert not asked.penalised


def test_pooled_training_has_the_rows_of_all_sites_and_the_epochs_of_all_rounds(
    federation: Federation,
) -> None:
    (training,) = run(federation, METHODS["pooled"], rounds=4).training
    (task,) = training.tasks
    sites = federation.tier(1)
    assert torch.equal(task.train.features, torch.cat([site.data.train.features for site in sites]))
    assert torch.equal(task.validation.target, torch.cat([site.data.validation.target for site in sites]))
    assert training.settings.training.epochs == 4 * federation.settings.training.epochs


def test_fedmap_fine_tunes_from_mu_and_under_the_prior(federation: Federation) -> None:
    tuning = run(federation, METHODS["fedmap"]).tuning
    assert tuning.penalised
    assert tuning.rule is None
    assert torch.equal(tuning.tasks[0].theta, tuning.prior.mu)
    assert tuning.prior.psi.numel() > 0


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "qfedavg", "feddyn", "pooled"])
def test_methods_of_one_model_fine_tune_it_without_a_prior_or_a_term(
    federation: Federation, name: str
) -> None:
    done = run(federation, METHODS[name])
    assert not done.tuning.penalised
    assert done.tuning.rule is None
    assert torch.equal(done.tuning.tasks[0].theta, done.mu)


def test_q_fedavg_takes_its_own_step_and_not_a_mean(federation: Federation) -> None:
    done = run(federation, QFedAvg(q=2.0), rounds=1)
    (asked,) = done.training
    local = {site.name: asked.fit(place).theta for place, site in enumerate(federation.tier(1))}
    weights = done.trained.history[0].weights
    losses = {name: weights[name] ** 0.5 for name in local}  # to a factor, which is found below
    mean = sum((weights[name] * theta for name, theta in local.items()), torch.zeros_like(done.mu))
    w = asked.tasks[0].theta
    candidates = [
        fair_step(w, local, {name: factor * loss for name, loss in losses.items()}, 2.0, 1.0).theta
        for factor in torch.linspace(0.5, 1.5, 1001).tolist()
    ]
    nearest = min(distance(done.mu, candidate) for candidate in candidates)
    assert nearest < 1e-3 * distance(mean, w)
    assert distance(done.mu, mean) > 0.05 * distance(mean, w)


def test_ditto_goes_on_with_each_sites_own_model(federation: Federation) -> None:
    _, first, _, second = run(federation, Ditto(lam=0.5)).training  # global and personal fits in turn
    for place, task in enumerate(second.tasks):
        assert torch.equal(task.theta, first.fit(place).theta)


def test_ditto_holds_a_t2_site_near_the_global_model_by_its_term(federation: Federation) -> None:
    free, held = run(federation, Ditto(lam=1e-6)), run(federation, Ditto(lam=100.0))
    assert distance(held.clinic.theta, held.mu) < 0.5 * distance(free.clinic.theta, free.mu)


def test_pfedbayes_goes_on_with_each_sites_own_posterior(federation: Federation) -> None:
    first, second = run(federation, PFedBayes()).training
    for place, task in enumerate(second.tasks):
        fit = first.fit(place)
        assert fit.beside is not None
        assert task.beside is not None
        assert torch.equal(task.theta, fit.theta)
        assert torch.equal(task.beside[0], fit.beside[0])


def test_the_global_distribution_of_pfedbayes_is_the_mean_of_the_sites_copies(
    federation: Federation,
) -> None:
    done = run(federation, PFedBayes(), rounds=1)
    copies = [done.training[0].fit(place).beside for place in range(2)]
    mean = torch.stack([copy for copy in copies if copy is not None]).double().mean(0).float()
    assert torch.allclose(done.mu, mean[1])
    assert torch.allclose(done.trained.kept["rho"], mean[2])
    assert not torch.equal(done.mu, done.training[0].tasks[0].theta)


def test_pfedbayes_fits_under_the_divergence_and_a_t2_site_moves_nobody_elses_distribution(
    federation: Federation,
) -> None:
    done = run(federation, PFedBayes(zeta=3.0))
    assert {asked.rule for asked in done.training} == {Variational(zeta=3.0, follow=True)}
    assert done.tuning.rule == Variational(zeta=3.0, follow=False)
    assert done.tuning.tasks[0].beside is not None
    assert torch.equal(done.tuning.tasks[0].beside[1], done.mu)


def test_pfedfda_trains_the_features_under_a_classifier_that_stays(federation: Federation) -> None:
    done = run(federation, METHODS["pfedfda"])
    size = embedding_of(federation.model).size
    for asked in (*done.training, done.tuning):
        for place, task in enumerate(asked.tasks):
            fit = asked.fit(place)
            assert torch.equal(fit.theta[size:], task.theta[size:])
            assert not torch.equal(fit.theta[:size], task.theta[:size])


def test_pfedfda_mixes_each_sites_gaussians_with_the_shared_ones_in_the_share_that_suits_it(
    binary_plan: StudyPlan, make_cohort: MakeCohort
) -> None:
    clinics = {"large": (2, 150), "middle": (2, 70), "small": (2, 30)}
    federation = load_federation(binary_plan, make_cohort({**SITES, **clinics}))
    engine, method, embedding = Noting(), METHODS["pfedfda"], embedding_of(federation.model)
    trained = method.train(Run(federation, engine, 2, SEED), lambda _: None)
    own, _ = method.personalise(Run(federation, engine, 2, SEED), trained, federation.tier(2))
    shared = ClassGaussians(trained.kept["means"], trained.kept["covariance"])
    found = []
    for place, site in enumerate(federation.tier(2)):
        fit, train = engine.asked[-1].fit(place), site.data.train
        features = embedding.features(SiteParameters(fit.theta, fit.buffers), train.features)
        seed = derive_seed(SEED, "folds", site.name)
        found.append(best_share(features, train.target, shared, CANDIDATES, seed))
        mixture = estimate(features, train.target, shared).mixed(shared, found[-1])
        coefficients, intercepts = mixture.discriminants(class_shares(train.target, 2))
        head = torch.cat([coefficients[1] - coefficients[0], (intercepts[1] - intercepts[0])[None]])
        assert torch.allclose(own[site.name].theta[embedding.size :], head.float(), atol=1e-5)
    assert len(set(found)) > 1, "one share for all would not show that each site has its own"


def test_pfedgp_trains_the_shared_network(federation: Federation) -> None:
    done = run(federation, METHODS["pfedgp"])
    network = done.trained.kept["network"]
    moved = [done.training[0].tasks[0].theta, *(asked.fit(0).theta for asked in done.training)]
    assert not any(torch.equal(network, theta) for theta in moved), "neither the first nor one site's"
    assert torch.equal(done.clinic.theta[: network.numel()], done.tuning.fit(0).theta)


PUBLISHED = FedmapSettings()
UNLIKE_IT = FedmapSettings(
    replace(PUBLISHED.prior, convex=False),
    replace(PUBLISHED.training, start="global", consensus_share=0.5),
    replace(PUBLISHED.aggregation, weighting="sample_count"),
)
CHANGES: dict[str, dict[str, dict[str, object]]] = {
    "fedmap-paper": {
        "prior": {"convex": True},
        "training": {"start": "local", "consensus_share": 0.0},
        "aggregation": {"weighting": "per_sample"},
    },
    "fedmap-quadratic": {"prior": {"convex": False}},
    "fedmap-convex": {"prior": {"convex": True}},
    "fedmap-per-sample": {"aggregation": {"weighting": "per_sample"}},
    "fedmap-literal": {"aggregation": {"weighting": "literal"}},
    "fedmap-reference": {"aggregation": {"weighting": "reference"}},
    "fedmap-sample-count": {"aggregation": {"weighting": "sample_count"}},
    "fedmap-start-local": {"training": {"start": "local"}},
    "fedmap-start-global": {"training": {"start": "global"}},
    "fedmap-no-consensus": {"training": {"consensus_share": 0.0}},
    "fedmap-frozen": {"aggregation": {"psi_steps": 0}},
    "fedmap-sketch": {"prior": {"sketch": SKETCH_WIDTH}},
}


@pytest.mark.parametrize("plan", [PUBLISHED, UNLIKE_IT], ids=["published", "unlike it"])
@pytest.mark.parametrize("name", ABLATIONS)
def test_a_variant_of_fedmap_changes_what_its_name_says_and_nothing_else(
    name: str, plan: FedmapSettings
) -> None:
    parts = {part: replace(getattr(plan, part), **values) for part, values in CHANGES[name].items()}
    assert ABLATIONS[name].settings(plan) == replace(plan, **parts)
