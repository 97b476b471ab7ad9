"""What each method converges to on sites with quadratic losses, where the answer is known in closed form.

Each of these fails if the method's defining step is taken out: its term, its variates, its server's state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmap.algorithm.fit.values import FailedFit
from fedmap.study.engine import Fits
from fedmap_lab.methods.ditto import Ditto
from fedmap_lab.methods.feddyn import FedDyn
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.fedprox import FedProx
from fedmap_lab.methods.method import Method, Progress, Run, Trained
from fedmap_lab.methods.pfedme import PFedMe
from fedmap_lab.methods.scaffold import Scaffold
from fedmap_lab.methods.scheme import FedAvg
from tests.lab.methods.quadratics import QuadraticEngine, quadratic_federation

ROWS = (10, 30)
CURVATURE = {10: 4.0, 30: 1.0}
TARGET = {10: torch.tensor([1.0, -0.5, 0.0]), 30: torch.tensor([-0.4, 0.3, 0.8])}


def train(method: Method, rounds: int, steps: int, rate: float = 0.02) -> Trained:
    engine = QuadraticEngine(CURVATURE, TARGET, steps, rate)
    return method.train(Run(quadratic_federation(ROWS), engine, rounds, 0), lambda _: None)


def shared(trained: Trained | Progress) -> Tensor:
    assert trained.prior is not None
    return trained.prior.mu


def weighted(weights: dict[int, float]) -> Tensor:
    return sum((w * TARGET[n] for n, w in weights.items()), torch.zeros(3)) / sum(weights.values())


MINIMISER = weighted(CURVATURE)  # of the sites' mean loss, each site counting once
MEAN_OF_OPTIMA = weighted({10: 10.0, 30: 30.0})  # where averaging trained-out models by rows ends


BY_ROWS = weighted({rows: rows * curvature for rows, curvature in CURVATURE.items()})  # of the mean by rows


class Unreliable(QuadraticEngine):
    """One site fails in some rounds; the other goes on without it."""

    def __init__(self, rows: int, absences: tuple[int, ...]) -> None:
        super().__init__(CURVATURE, TARGET, steps=120)
        self._rows, self._absences, self._round = rows, absences, 0

    def fit(self, *asked: Any, **more: Any) -> Fits:
        self._round += 1
        fits = super().fit(*asked, **more)
        if self._round not in self._absences:
            return fits
        pairs = zip(asked[3], fits, strict=True)
        return [FailedFit("absent") if len(task.train) == self._rows else fit for task, fit in pairs]


def consensus_rounds(engine: QuadraticEngine) -> tuple[list[Progress], Trained]:
    """Thirty of FedMAP's consensus rounds, and what one more under the prior ends with."""
    federation = quadratic_federation(ROWS)
    rounds = federation.plan.rounds.model_copy(update={"quorum": 1})
    federation = replace(federation, plan=federation.plan.model_copy(update={"rounds": rounds}))
    settings = federation.settings
    settings = replace(
        settings,
        prior=replace(settings.prior, alpha=0.5, convex=False),
        training=replace(settings.training, start="global", consensus_share=0.97),
        aggregation=replace(settings.aggregation, weighting="sample_count"),
    )
    seen: list[Progress] = []
    trained = FedMap().train(Run(replace(federation, settings=settings), engine, 31, 0), seen.append)
    return seen[:-1], trained


def test_fedavg_ends_at_the_mean_of_the_sites_own_optima() -> None:
    assert shared(train(FedAvg(), 2, 300)) == pytest.approx(MEAN_OF_OPTIMA, abs=0.01)


def test_feddyn_ends_at_the_minimiser_of_the_mean_loss() -> None:
    found = shared(train(FedDyn(alpha=1.0), 25, 120))
    assert found == pytest.approx(MINIMISER, abs=0.02)
    assert float((MINIMISER - MEAN_OF_OPTIMA).abs().max()) > 0.5, "the test could not tell them apart"


def test_consensus_rounds_of_fedmap_end_at_the_minimiser_of_the_mean_loss_by_rows() -> None:
    """Without multipliers they would end at a mean of the sites' own optima."""
    seen, trained = consensus_rounds(QuadraticEngine(CURVATURE, TARGET, steps=120))
    agreed = seen[-1]
    assert shared(agreed) == pytest.approx(BY_ROWS, abs=0.02)
    for own in agreed.personal.values():
        assert own.theta == pytest.approx(BY_ROWS, abs=0.03), "the sites agree"
    assert float((BY_ROWS - MEAN_OF_OPTIMA).abs().max()) > 0.2, "the test could not tell them apart"
    assert len(trained.personal) == len(ROWS)


def test_a_site_that_fails_in_every_round_under_the_prior_has_no_model_of_its_own() -> None:
    seen, trained = consensus_rounds(Unreliable(ROWS[0], (31,)))
    assert seen[-1].personal.keys() - trained.personal.keys() == {f"site-{ROWS[0]}"}


def test_a_site_that_fails_counts_in_a_consensus_round_and_not_under_the_prior() -> None:
    _, trained = consensus_rounds(Unreliable(ROWS[0], (30, 31)))
    last_consensus, under_the_prior = trained.history[-2:]
    assert last_consensus.weights.keys() == {f"site-{rows}" for rows in ROWS}
    assert under_the_prior.weights.keys() == {f"site-{ROWS[1]}"}


@pytest.mark.parametrize("absences", [(2, 3, 5, 7), (11, 12, 20, 29, 30)], ids=["early", "late"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_site_that_misses_consensus_rounds_does_not_throw_the_others_off(
    rows: int, absences: tuple[int, ...]
) -> None:
    """At rest its multiplier is far from zero: where μ goes must not depend on who answers."""
    seen, _ = consensus_rounds(Unreliable(rows, absences))
    assert [len(progress.record.failed) for progress in seen] == [n in absences for n in range(1, 31)]
    assert shared(seen[-1]) == pytest.approx(BY_ROWS, abs=0.05)


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
