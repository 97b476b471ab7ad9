"""f_ψ by hand, its two closed-form gradients against autograd, and the constraint that keeps it convex."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.settings import PriorSettings

SEVERAL = ParameterSpec(("w", "b", "v"), ((3, 3), (2,), (5,)))
SEEDS = st.integers(0, 10_000)
SKETCH = st.sampled_from([0, 1, 3, 4])
# torch's softplus is the identity above 20, which is off by 2e-9 there: no bound in float64 can be tighter.
SOFTPLUS = 1e-8


def _network(sketch: int = 0, seed: int = 0, hidden: tuple[int, int] = (4, 3)) -> ConvexNetwork:
    return ConvexNetwork(SEVERAL, PriorSettings(hidden=hidden, sketch=sketch, seed=seed))


def _point(network: ConvexNetwork, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """ψ with biases off zero, five θ and a μ, in float64."""
    draw = np.random.default_rng(seed)
    psi = network.initialise().double() + torch.from_numpy(draw.normal(scale=0.3, size=network.spec.size))
    theta = torch.from_numpy(draw.normal(scale=2, size=(5, network.model.size)))
    mu = torch.from_numpy(draw.normal(scale=2, size=network.model.size))
    return network.project(psi), theta, mu


@given(SEEDS, SKETCH)
def test_the_psi_gradient_is_that_of_autograd(seed: int, sketch: int) -> None:
    network = _network(sketch, seed)
    flat, theta, mu = _point(network, seed)
    weight = torch.tensor([0.1, 0.0, 0.4, 0.3, 0.2], dtype=torch.float64)
    leaf = flat.clone().requires_grad_()
    psi = network.psi(leaf)
    weighted = (network.value(psi, network.anchor(psi, mu), theta) * weight).sum()
    (expected,) = torch.autograd.grad(weighted, leaf)

    views = network.psi(flat)
    total = torch.ones_like(flat)  # the gradient is added to what is there
    network.add_psi_gradient(views, network.anchor(views, mu), theta, mu, weight, total)
    assert torch.allclose(total - 1, expected, rtol=SOFTPLUS, atol=SOFTPLUS)


@given(SEEDS, SKETCH, st.floats(0.1, 100))
def test_f_is_not_negative(seed: int, sketch: int, scale: float) -> None:
    network = _network(sketch, seed)
    flat, theta, mu = _point(network, seed)
    psi = network.psi(network.project(flat * scale))
    assert bool((network.value(psi, network.anchor(psi, mu), theta * scale) >= 0).all())


@given(SEEDS, SKETCH, st.floats(0.1, 30), st.floats(0, 1))
def test_f_is_convex_in_theta_and_mu_together(seed: int, sketch: int, scale: float, t: float) -> None:
    """Jensen on random segments, for any projected ψ; with a sketch as without."""
    network = _network(sketch, seed)
    flat, theta, mu = _point(network, seed)
    _, theta_2, mu_2 = _point(network, seed + 1)
    psi = network.psi(network.project(flat * scale))

    def f(at: Tensor, around: Tensor) -> Tensor:
        return network.value(psi, network.anchor(psi, around), at)

    chord = t * f(theta, mu) + (1 - t) * f(theta_2, mu_2)
    between = f(t * theta + (1 - t) * theta_2, t * mu + (1 - t) * mu_2)
    assert bool((between <= chord + SOFTPLUS * (1 + chord)).all())


@given(SEEDS)
def test_projection_makes_later_weights_non_negative_and_touches_nothing_else(seed: int) -> None:
    network = _network()
    raw = torch.from_numpy(np.random.default_rng(seed).normal(size=network.spec.size))
    before, after = network.psi(raw.clone()), network.psi(network.project(raw))
    assert torch.equal(after.second_weight, before.second_weight.clamp(min=0))
    assert torch.equal(after.output, before.output.clamp(min=0))
    assert torch.equal(after.first_bias, before.first_bias)
    assert torch.equal(after.second_bias, before.second_bias)
    first_layer = after.theta_weights + after.mu_weights
    for one, other in zip(first_layer, before.theta_weights + before.mu_weights, strict=True):
        assert torch.equal(one, other)


@given(SEEDS)
def test_a_fresh_psi_satisfies_the_constraint_and_depends_on_the_seed_only(seed: int) -> None:
    network = _network(seed=seed)
    flat = network.initialise()
    psi = network.psi(flat)
    assert flat.shape == (network.spec.size,)
    assert bool((psi.second_weight >= 0).all())
    assert bool((psi.output >= 0).all())
    assert torch.equal(flat, _network(seed=seed).initialise())
    assert not torch.equal(flat, _network(seed=seed + 1).initialise())


def test_psi_counts_two_first_layers_and_no_output_bias() -> None:
    """Per tensor: 2·h₁·k + h₁ + h₁·h₂ + h₂ + h₂; sketched tensors count k, not their size."""
    sizes, rest = 9 + 2 + 5, 3 * (4 + 4 * 3 + 3 + 3)
    assert _network().spec.size == 2 * 4 * sizes + rest
    assert _network(sketch=3).spec.size == 2 * 4 * (3 + 2 + 3) + rest
