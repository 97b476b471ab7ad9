"""The steps of the local rules, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from fedmap.algorithm.fit.adam import Adam
from fedmap.algorithm.fit.rule import FitStart
from fedmap_lab.methods.feddyn import Dynamic
from fedmap_lab.methods.fedprox import Proximal
from fedmap_lab.methods.pfedbayes import Variational, kl_gradients
from fedmap_lab.methods.pfedfda import FrozenHead
from fedmap_lab.methods.pfedme import Moreau
from fedmap_lab.methods.qfedavg import fair_step
from fedmap_lab.methods.scaffold import Controlled


def start_of(theta: Tensor, rows: float = 10.0, rate: float = 0.1) -> FitStart:
    return FitStart(theta, torch.full((len(theta),), rows), list(range(len(theta))), rate)


def one_adam_step(theta: Tensor, gradient: Tensor, rate: float = 0.1) -> Tensor:
    theta = theta.clone()
    Adam(theta, rate).step(theta, gradient)
    return theta


def test_the_proximal_term_pulls_towards_the_anchor() -> None:
    gradient = torch.tensor([[1.0, 0.0]])
    Proximal(0.5).add(torch.tensor([[3.0, 2.0]]), torch.tensor([[[1.0, 4.0]]]), gradient)
    assert gradient.tolist() == [[2.0, -1.0]]


def test_feddyn_adds_its_linear_and_its_quadratic_term() -> None:
    gradient = torch.tensor([[1.0]])
    Dynamic(0.5).add(torch.tensor([[3.0]]), torch.tensor([[[1.0], [0.25]]]), gradient)
    assert gradient.tolist() == [[1.0 + 0.5 * 2.0 - 0.25]]


def test_scaffold_steps_on_the_corrected_gradient_and_keeps_the_plain_one() -> None:
    theta = torch.tensor([[0.0, 0.0]])
    beside = torch.tensor([[[0.0, -3.0], [0.0, 0.0]]])  # the correction turns the second gradient around
    steps = Controlled().begin(start_of(theta))
    gradients = iter([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 2.0]])])
    steps.step(theta, beside, lambda _: next(gradients))
    assert theta == pytest.approx(one_adam_step(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])))
    steps.step(theta, beside, lambda _: next(gradients))
    assert beside[0, 1].tolist() == [2.0, 2.0], "the mean of the plain gradients"


def test_pfedme_finds_the_proximal_point_of_each_batch_before_w_follows() -> None:
    theta, anchor = torch.tensor([[0.0]]), torch.tensor([[[0.0]]])
    rule = Moreau(lam=3.0, pull=0.25, inner_steps=400)
    rule.begin(start_of(theta, rate=0.01)).step(theta, anchor, lambda at: 1.0 * (at - 2.0))
    assert float(theta) == pytest.approx(2.0 / (1.0 + 3.0), abs=0.005)  # (a·t + λ·w)/(a + λ)
    assert float(anchor) == pytest.approx(0.25 * float(theta), abs=1e-6)


def test_pfedme_takes_one_gradient_for_each_inner_step() -> None:
    asked = []
    theta = torch.zeros(1, 1)

    def gradient(at: Tensor) -> Tensor:
        asked.append(float(at))
        return torch.ones_like(at)

    Moreau(1.0, 0.5, 5).begin(start_of(theta)).step(theta, torch.zeros(1, 1, 1), gradient)
    assert len(asked) == len(set(asked)) == 5


def test_the_gradients_of_the_divergence_are_those_of_two_gaussians() -> None:
    m, sigma = torch.tensor([0.3, -1.0], requires_grad=True), torch.tensor([0.5, 2.0], requires_grad=True)
    w, sigma_w = torch.tensor([0.1, 0.4]), torch.tensor([0.7, 0.2])
    expected = torch.autograd.grad(kl_divergence(Normal(m, sigma), Normal(w, sigma_w)).sum(), (m, sigma))
    for one, other in zip(kl_gradients(m, sigma, w, sigma_w), expected, strict=True):
        assert torch.allclose(one, other)


def test_pfedbayes_finds_the_posterior_of_a_gaussian_model() -> None:
    """Precision N·a/ζ + 1/σ_w², mean in proportion; without the KL term σ falls to 0, m to the target."""
    rows, curvature, target, zeta, prior_mean, prior_sigma = 10.0, 0.5, 1.0, 2.0, -1.0, 0.5
    theta = torch.zeros(1, 50)  # fifty times the same problem: the noise of the samples averages out
    rho = torch.log(torch.expm1(torch.tensor(0.3)))
    rho_w = torch.log(torch.expm1(torch.tensor(prior_sigma)))
    beside = torch.stack([rho.expand(50), torch.full((50,), prior_mean), rho_w.expand(50)])[None].clone()
    steps = Variational(zeta, follow=False).begin(start_of(theta, rows, rate=0.01))
    for _ in range(1200):
        steps.step(theta, beside, lambda at: curvature * (at - target))
    data, prior = rows * curvature / zeta, prior_sigma**-2
    assert float(theta.mean()) == pytest.approx(
        (data * target + prior * prior_mean) / (data + prior), abs=0.05
    )
    sigma = float(torch.nn.functional.softplus(beside[0, 0]).mean())
    assert sigma == pytest.approx((data + prior) ** -0.5, rel=0.1)
    assert beside[0, 1].tolist() == [prior_mean] * 50, "nobody listens to a T2 site"


def test_the_sites_copy_of_the_global_distribution_follows_its_posterior() -> None:
    theta = torch.ones(1, 4)
    beside = torch.stack([torch.full((4,), -2.0), torch.zeros(4), torch.full((4,), -2.0)])[None].clone()
    Variational(1.0).begin(start_of(theta)).step(theta, beside, lambda at: torch.zeros_like(at))
    assert bool((beside[0, 1] > 0).all())
    assert bool((beside[0, 2] > -2.0).all()), "wider, since the posterior lies outside"


def test_a_frozen_head_does_not_move() -> None:
    gradient = torch.ones(2, 5)
    FrozenHead(2).add(torch.zeros(2, 5), torch.zeros(2, 0, 5), gradient)
    assert gradient.tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]] * 2


def test_q_fedavg_takes_the_step_of_its_formula() -> None:
    w = torch.tensor([1.0, 0.0])
    local = {"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0, 2.0])}
    losses, q, lipschitz = {"a": 0.5, "b": 2.0}, 2.0, 3.0
    # Δ_a = .25·3·(1, 0), h_a = 2·.5·9 + 3·.25; Δ_b = 4·3·(0, −2), h_b = 2·2·36 + 3·4
    step = fair_step(w, local, losses, q, lipschitz)
    divisor = (9.0 + 0.75) + (144.0 + 12.0)
    assert step.theta == pytest.approx(torch.tensor([1.0 - 0.75 / divisor, 24.0 / divisor]), abs=1e-6)
    assert step.weights == pytest.approx({"a": 0.25 / 4.25, "b": 4.0 / 4.25})


def test_q_fedavg_with_q_zero_is_the_plain_mean_of_the_local_models() -> None:
    local = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([2.0, 0.0])}
    for lipschitz in (0.1, 1.0, 50.0):
        step = fair_step(torch.tensor([5.0, 5.0]), local, {"a": 0.1, "b": 9.0}, 0.0, lipschitz)
        assert step.theta == pytest.approx(torch.tensor([1.0, 2.0]), abs=1e-6)
