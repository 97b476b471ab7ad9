"""R and its gradient, by hand and against autograd; that f is convex: test_convex_network."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.settings import PriorSettings

TWO = ParameterSpec(("w",), ((2,),))
SEVERAL = ParameterSpec(("w", "b", "v"), ((2, 3), (2,), (5,)))
SEEDS = st.integers(0, 10_000)
SKETCH = st.sampled_from([0, 1, 3])

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


@given(st.floats(1e-3, 1), st.floats(1e-5, 0.1), st.sampled_from([(1, 1), (4, 3)]), SKETCH, SEEDS)
def test_the_closed_form_gradient_is_that_of_autograd(
    alpha: float, epsilon: float, hidden: tuple[int, int], sketch: int, seed: int
) -> None:
    prior = PriorSettings(alpha=alpha, epsilon=epsilon, hidden=hidden, sketch=sketch, seed=seed)
    network, noise = ConvexNetwork(SEVERAL, prior), np.random.default_rng(seed)
    theta, mu = torch.from_numpy(noise.normal(size=(2, 5, SEVERAL.size)))
    psi = network.initialise().double() + torch.from_numpy(noise.normal(scale=0.3, size=network.spec.size))
    penalty = anchored_penalty(SEVERAL, prior, mu[0], network.project(psi))
    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(penalty.value(leaf).sum(), leaf)
    assert torch.allclose(penalty.gradient(theta), expected, rtol=SOFTPLUS, atol=SOFTPLUS)
