"""R by hand, its gradient, and the properties the theory rests on: R ≥ 0 and joint strong convexity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.aggregation import SiteParameters, next_prior
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import AggregationSettings, PriorSettings

TWO = ParameterSpec(("w",), ((2,),))
SEVERAL = ParameterSpec(("w", "b", "v"), ((2, 3), (2,), (5,)))
NO_BUFFERS = Buffers(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
SEEDS = st.integers(0, 10_000)
SKETCH = st.sampled_from([0, 1, 3])
LEARNING_RATES = st.one_of(st.floats(0, 1), st.sampled_from([1e2, 1e4, 1e8]))

# torch's softplus is the identity above 20, which is off by 2e-9 there: no bound in float64 can be tighter.
SOFTPLUS = 1e-8

HAND_THETA, HAND_MU = (1.0, -2.0), (0.5, 1.0)
HAND_PSI = (0.3, -0.1, -0.2, 0.4, 0.1, 0.7, -0.3, 0.9)  # A, B, b₁, U, b₂, v
FIRST = 0.5 + 0.4  # A·θ + B·μ + b₁ = (0.3 + 0.2) + (−0.1 + 0.4 + 0.1)
SECOND = 0.7 * math.log1p(math.exp(FIRST)) - 0.3
F = 0.9 * math.log1p(math.exp(SECOND))
CHAIN = 0.9 * 0.7 / (1 + math.exp(-SECOND)) / (1 + math.exp(-FIRST))


def _double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_r_and_its_gradient_by_hand() -> None:
    """‖θ−μ‖² = 0.25 + 9 = 9.25; ‖θ‖² + ‖μ‖² = 5 + 1.25 = 6.25; α = 0.2, ε = 0.01."""
    prior = PriorSettings(alpha=0.2, epsilon=0.01, hidden=(1, 1))
    penalty = anchored_penalty(TWO, prior, _double(*HAND_MU), _double(*HAND_PSI))
    theta = _double(*HAND_THETA)[None]
    assert float(penalty.value(theta)) == pytest.approx(F + 0.2 * 9.25 + 0.01 * 6.25, abs=1e-12)
    assert float(penalty.convex_value(theta)) == pytest.approx(F, abs=1e-12)
    gradient = [
        CHAIN * 0.3 + 0.4 * 0.5 + 0.02 * 1.0,
        CHAIN * -0.1 + 0.4 * -3.0 + 0.02 * -2.0,
    ]  # 2α(θ−μ) + 2εθ
    assert penalty.gradient(theta)[0].tolist() == pytest.approx(gradient, abs=1e-12)


def test_the_quadratic_prior_alone_by_hand() -> None:
    prior = PriorSettings(alpha=0.2, epsilon=0.01, convex=False)
    penalty = anchored_penalty(TWO, prior, _double(*HAND_MU), torch.zeros(0))
    theta = _double(*HAND_THETA)[None]
    assert float(penalty.value(theta)) == pytest.approx(1.85 + 0.0625, abs=1e-12)
    assert float(penalty.convex_value(theta)) == 0.0
    assert penalty.gradient(theta)[0].tolist() == pytest.approx([0.22, -1.24], abs=1e-12)


@st.composite
def learned(draw: st.DrawFn) -> tuple[PriorSettings, Tensor]:
    """ψ after 0 to 6 ψ-steps of any size, on random sites."""
    prior = PriorSettings(
        alpha=draw(st.floats(1e-3, 1)),
        epsilon=draw(st.floats(1e-5, 0.1)),
        hidden=draw(st.sampled_from([(1, 1), (4, 3)])),
        sketch=draw(SKETCH),
        seed=draw(st.integers(0, 50)),
    )
    noise = np.random.default_rng(draw(SEEDS))
    sites = {name: torch.from_numpy(noise.normal(size=SEVERAL.size)).float() for name in "abc"}
    start = Prior(torch.zeros(SEVERAL.size), NO_BUFFERS, ConvexNetwork(SEVERAL, prior).initialise())
    steps = AggregationSettings(psi_learning_rate=draw(LEARNING_RATES), psi_steps=draw(st.integers(0, 6)))
    log_omega = {"a": 0.0, "b": -1.0, "c": 0.5}
    step = next_prior(SEVERAL, prior, steps, start, log_omega, lambda s: SiteParameters(sites[s], NO_BUFFERS))
    return prior, step.prior.psi


def _points(seed: int, scale: float) -> Tensor:
    """Five θ and five μ, twice: (2, 2, 5, d)."""
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=scale, size=(2, 2, 5, SEVERAL.size)))


def _r(prior: PriorSettings, psi: Tensor, theta: Tensor, mu: Tensor) -> Tensor:
    """R at pairs (θ, μ), each with a μ of its own."""
    return torch.stack(
        [
            anchored_penalty(SEVERAL, prior, around, psi.double()).value(at[None])[0]
            for at, around in zip(theta, mu, strict=True)
        ]
    )


@given(learned(), SEEDS, st.floats(0, 1), st.sampled_from([0.1, 1.0, 20.0]))
def test_r_is_jointly_convex_after_any_psi_steps(
    after: tuple[PriorSettings, Tensor], seed: int, t: float, scale: float
) -> None:
    """Strongly so: by at least ε, R(tx + (1−t)y) ≤ tR(x) + (1−t)R(y) − ε t(1−t)‖x−y‖² for x = (θ, μ)."""
    prior, psi = after
    assert bool(torch.isfinite(psi).all())
    (theta, mu), (theta_2, mu_2) = _points(seed, scale)
    between = _r(prior, psi, t * theta + (1 - t) * theta_2, t * mu + (1 - t) * mu_2)
    chord = t * _r(prior, psi, theta, mu) + (1 - t) * _r(prior, psi, theta_2, mu_2)
    apart = (theta - theta_2).square().sum(-1) + (mu - mu_2).square().sum(-1)
    bound = chord - prior.epsilon * t * (1 - t) * apart
    assert bool((between <= bound + SOFTPLUS * (1 + chord)).all())


@given(learned(), SEEDS, st.sampled_from([0.1, 1.0, 20.0]))
def test_r_is_not_negative_after_any_psi_steps(
    after: tuple[PriorSettings, Tensor], seed: int, scale: float
) -> None:
    prior, psi = after
    theta, mu = _points(seed, scale)[0]
    shrinkage = prior.epsilon * (theta.square().sum(-1) + mu.square().sum(-1))
    assert bool((_r(prior, psi, theta, mu) >= shrinkage * (1 - 1e-12)).all())


@given(learned(), SEEDS)
def test_the_closed_form_gradient_is_that_of_autograd(after: tuple[PriorSettings, Tensor], seed: int) -> None:
    prior, psi = after
    theta, mu = _points(seed, 1.0)[0]
    penalty = anchored_penalty(SEVERAL, prior, mu[0], psi.double())
    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(penalty.value(leaf).sum(), leaf)
    assert torch.allclose(penalty.gradient(theta), expected, rtol=SOFTPLUS, atol=SOFTPLUS)
