"""What each method converges to on sites with quadratic losses, where the answer is known in closed form.

Each of these fails if the method's defining step is taken out: its term, its variates, its server's state.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lab.methods.ditto import Ditto
from lab.methods.fedavg import FedAvg
from lab.methods.feddyn import FedDyn
from lab.methods.fedprox import FedProx
from lab.methods.method import Method, Trained
from lab.methods.pfedme import PFedMe
from lab.methods.scaffold import Scaffold
from tests.lab.methods.quadratics import QuadraticEngine, quadratic_federation

ROWS = (10, 30)
CURVATURE = {10: 4.0, 30: 1.0}
TARGET = {10: torch.tensor([1.0, -0.5, 0.0]), 30: torch.tensor([-0.4, 0.3, 0.8])}


def train(method: Method, rounds: int, steps: int, rate: float = 0.02) -> Trained:
    engine = QuadraticEngine(CURVATURE, TARGET, steps, rate)
    return method.train(quadratic_federation(ROWS), engine, rounds, 0, lambda _: None)


def shared(trained: Trained) -> Tensor:
    assert trained.prior is not None
    return trained.prior.mu


def weighted(weights: dict[int, float]) -> Tensor:
    return sum((w * TARGET[n] for n, w in weights.items()), torch.zeros(3)) / sum(weights.values())


MINIMISER = weighted(CURVATURE)  # of the sites' mean loss, each site counting once
MEAN_OF_OPTIMA = weighted({10: 10.0, 30: 30.0})  # where averaging trained-out models by rows ends


def test_fedavg_ends_at_the_mean_of_the_sites_own_optima() -> None:
    assert shared(train(FedAvg(), 2, 300)) == pytest.approx(MEAN_OF_OPTIMA, abs=0.01)


def test_feddyn_ends_at_the_minimiser_of_the_mean_loss() -> None:
    found = shared(train(FedDyn(alpha=1.0), 25, 120))
    assert found == pytest.approx(MINIMISER, abs=0.02)
    assert float((MINIMISER - MEAN_OF_OPTIMA).abs().max()) > 0.5, "the test could not tell them apart"


def test_scaffold_ends_at_the_minimiser_of_the_mean_loss_although_sites_drift() -> None:
    drifting = shared(train(FedAvg(), 40, 30))
    found = shared(train(Scaffold(), 40, 30))
    assert found == pytest.approx(MINIMISER, abs=0.05)
    assert float((drifting - MINIMISER).abs().max()) > 0.1


def test_fedprox_ends_where_its_proximal_points_average_to_their_own_centre() -> None:
    mu = 2.0
    pulls = {n: n * CURVATURE[n] / (CURVATURE[n] + mu) for n in ROWS}
    assert shared(train(FedProx(mu), 25, 120)) == pytest.approx(weighted(pulls), abs=0.02)
    assert float((weighted(pulls) - MEAN_OF_OPTIMA).abs().max()) > 0.02


def test_ditto_keeps_a_personal_model_between_its_own_optimum_and_the_global_model() -> None:
    lam = 2.0
    trained = train(Ditto(lam), 3, 300)
    assert shared(trained) == pytest.approx(MEAN_OF_OPTIMA, abs=0.01)
    for n in ROWS:
        between = (CURVATURE[n] * TARGET[n] + lam * MEAN_OF_OPTIMA) / (CURVATURE[n] + lam)
        assert trained.personal[f"site-{n}"].theta == pytest.approx(between, abs=0.02)
        assert float((trained.personal[f"site-{n}"].theta - shared(trained)).abs().max()) > 0.05


def test_pfedme_ends_at_the_minimiser_of_the_mean_moreau_envelope() -> None:
    lam = 2.0
    envelope = {n: CURVATURE[n] * lam / (CURVATURE[n] + lam) for n in ROWS}
    centre = weighted(envelope)
    trained = train(PFedMe(lam=lam, pull=0.05, inner_steps=10), 30, 12)
    assert shared(trained) == pytest.approx(centre, abs=0.05)
    assert float((centre - weighted(dict.fromkeys(ROWS, 1.0))).abs().max()) > 0.2, "what plain steps give"
    for n in ROWS:
        own, whole = trained.personal[f"site-{n}"].theta - centre, TARGET[n] - centre
        assert 0.1 < float(own @ whole / (whole @ whole)) < 0.95, (
            "between the global model and its own optimum"
        )
