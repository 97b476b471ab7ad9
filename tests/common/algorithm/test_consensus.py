"""Where consensus rounds come to rest, with sites whose losses are quadratics and whose fits are exact.

Both halves are the product's own: `LocalRound.kept` and `OwnModel.update` at the sites, `next_prior` at the
centre, which takes from each site what it sent last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.values import LocalFit
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.aggregation import SiteParameters, next_prior
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings, PriorSettings, TrainingSettings

WIDTH, ROUNDS, ALPHA = 3, 400, 0.05
SITES = ("a", "b", "c", "d")
SPEC = ParameterSpec(("w",), ((WIDTH,),))
SETTINGS = FedmapSettings(
    PriorSettings(convex=False, alpha=ALPHA), TrainingSettings(start="global", consensus_share=0.999)
)
NO_BUFFERS = Buffers(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
Happens = Callable[[int, str], bool]
Weigh = Callable[[int, str, float], float]


def never(number: int, site: str) -> bool:  # noqa: ARG001
    return False


def by_size(number: int, site: str, loss: float) -> float:  # noqa: ARG001
    return {"a": 1.0, "b": 0.0, "c": -0.5, "d": 0.3}[site]


def per_sample(number: int, site: str, loss: float) -> float:  # noqa: ARG001
    """As the published rule: it changes from round to round."""
    return -loss


def solve(left: Tensor, right: Tensor) -> Tensor:
    found: Tensor = torch.linalg.solve(left, right)
    return found.float()


class Quadratics:
    """Site k has the loss ½(θ − t)ᵀH(θ − t); all are drawn from one seed."""

    def __init__(self, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.bend, self.target = {}, {}
        for site in SITES:
            root = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
            self.bend[site] = 0.3 * root @ root.T + 0.1 * torch.eye(WIDTH, dtype=torch.float64)
            self.target[site] = torch.randn(WIDTH, generator=draw, dtype=torch.float64)

    def fit(self, site: str, mu: Tensor, multiplier: Tensor) -> Tensor:
        """argmin L + α‖θ − μ + u‖², in closed form."""
        bend = self.bend[site]
        left = bend + 2 * ALPHA * torch.eye(WIDTH, dtype=torch.float64)
        right = bend @ self.target[site] + 2 * ALPHA * (mu.double() - multiplier.double())
        return solve(left, right)

    def loss(self, site: str, theta: Tensor) -> float:
        away = theta.double() - self.target[site]
        return float(0.5 * away @ self.bend[site] @ away)

    def sums(self, weights: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """Σ w H and Σ w H t: the weighted sum of the losses is least where the one times θ is the other."""
        bend = sum((share * self.bend[site] for site, share in weights.items()), torch.zeros(WIDTH, WIDTH))
        pull = [share * self.bend[site] @ self.target[site] for site, share in weights.items()]
        return bend, sum(pull, torch.zeros(WIDTH))

    def minimiser(self, weights: Mapping[str, float]) -> Tensor:
        return solve(*self.sums(weights))


def rest(
    sites: Quadratics,
    *,
    missing: Happens = never,
    late: Happens = never,
    gone: Happens = never,
    weigh: Weigh = by_size,
    hostile: Tensor | None = None,
) -> tuple[Tensor, Mapping[str, float], Mapping[str, OwnModel]]:
    """μ after all rounds, the last weights and what the sites keep.

    `missing`: does no fit. `late`: fits, and the answer does not count. `gone`: takes part no more.
    `hostile`: site a always sends μ and this.
    """
    prior = Prior(torch.zeros(WIDTH), NO_BUFFERS, torch.zeros(0))
    own: dict[str, OwnModel] = {}
    sent: dict[str, SiteParameters] = {}
    log_omega: dict[str, float] = {}
    weights: Mapping[str, float] = {}
    for number in range(1, ROUNDS + 1):
        this = LocalRound(SETTINGS, number, ROUNDS + 1)
        assert this.is_consensus
        for site in SITES:
            if gone(number, site):
                sent.pop(site, None)
                log_omega.pop(site, None)
            elif not missing(number, site):
                before = own[site].multiplier if site in own else None
                theta = sites.fit(site, prior.mu, torch.zeros(WIDTH) if before is None else before)
                fit = LocalFit(theta, NO_BUFFERS, 0.0, 1.0, 0.0, 2, 1, 1, None)
                own[site] = this.kept(prior, own.get(site), fit)
                if not late(number, site):
                    sent[site] = own[site].update
                    log_omega[site] = weigh(number, site, sites.loss(site, theta))
        if hostile is not None:
            sent["a"] = SiteParameters(prior.mu + hostile, NO_BUFFERS)
        aggregation = SETTINGS.aggregation_in(number, ROUNDS + 1)
        step = next_prior(SPEC, SETTINGS.prior, aggregation, prior, log_omega, sent.__getitem__)
        prior, weights = step.prior, step.weights
    return prior.mu, weights, own


def one_in_three(number: int, site: str) -> bool:
    return (number + SITES.index(site)) % 3 == 0


def first_rounds_only(number: int, site: str) -> bool:
    return site == "b" and number < 10


@pytest.mark.parametrize("seed", range(4))
def test_the_sites_agree_on_the_minimiser_of_their_mean_loss(seed: int) -> None:
    sites = Quadratics(seed)
    mu, weights, own = rest(sites)
    assert torch.allclose(mu, sites.minimiser(weights), atol=2e-3)
    for one in own.values():
        assert torch.allclose(one.parameters.theta, mu, atol=2e-3)
    mean_of_optima = sum((share * sites.target[site] for site, share in weights.items()), torch.zeros(WIDTH))
    assert float((mu - mean_of_optima).norm()) > 0.1, "the test could not tell them apart"


CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "weights that change from round to round": {"weigh": per_sample},
    "late now and then": {"late": one_in_three},
    "late at first": {"late": first_rounds_only},
    "missing now and then": {"missing": one_in_three},
    "missing at first": {"missing": first_rounds_only},
}


@pytest.mark.parametrize("how", CIRCUMSTANCES.values(), ids=CIRCUMSTANCES)
@pytest.mark.parametrize("seed", range(2))
def test_they_agree_on_it_in_all_circumstances_of_a_network(how: dict[str, Any], seed: int) -> None:
    sites = Quadratics(seed)
    mu, weights, _ = rest(sites, **how)
    assert torch.allclose(mu, sites.minimiser(weights), atol=5e-3)


def test_a_site_that_leaves_takes_all_of_its_pull_along() -> None:
    sites = Quadratics()
    mu, weights, _ = rest(sites, gone=lambda number, site: site == "a" and number > 20)
    assert weights.keys() == {"b", "c", "d"}
    assert torch.allclose(mu, sites.minimiser(weights), atol=2e-3)


def test_a_site_that_falls_silent_holds_the_others_only_as_its_last_update_pulls() -> None:
    """It counts as α‖μ − z‖², z what it sent last: a weak pull that does not grow."""
    sites = Quadratics()
    mu, weights, own = rest(sites, missing=lambda number, site: site == "a" and number > 20)
    assert weights.keys() == set(SITES)
    last = own["a"].update.theta.double()
    bend, pull = sites.sums({site: weights[site] for site in SITES[1:]})
    anchored = bend + 2 * ALPHA * weights["a"] * torch.eye(WIDTH)
    assert torch.allclose(mu, solve(anchored, pull + 2 * ALPHA * weights["a"] * last), atol=5e-3)


def test_a_hostile_sites_pull_does_not_add_up_over_the_rounds() -> None:
    """Who always sends μ and a push counts as a loss of that slope: a shift that comes to rest."""
    sites, push = Quadratics(), torch.full((WIDTH,), 0.5)
    mu, weights, _ = rest(sites, hostile=push)
    bend, pull = sites.sums({site: weights[site] for site in SITES[1:]})
    assert torch.allclose(mu, solve(bend, pull + 2 * ALPHA * weights["a"] * push), atol=5e-3)
