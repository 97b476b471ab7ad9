"""Adam against torch.optim.Adam, with a step count of its own for each site."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.fit.adam import Adam


def _gradients(seed: int, steps: int, sites: int, size: int) -> Tensor:
    draw = np.random.default_rng(seed)
    scale = 10.0 ** draw.uniform(-4, 2, size=size)  # tiny and large coordinates
    return torch.from_numpy(draw.normal(size=(steps, sites, size)) * scale).float()


def _torch_adam(start: Tensor, gradients: Tensor, learning_rate: float, weight_decay: float = 0.0) -> Tensor:
    parameter = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([parameter], lr=learning_rate, weight_decay=weight_decay)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimiser.step()
    return parameter.detach()


@given(st.integers(0, 999), st.sampled_from([1e-4, 1e-3, 0.1]))
def test_sites_that_take_fewer_steps_have_their_own_count(seed: int, learning_rate: float) -> None:
    """Site 0 takes every step, site 1 every second, site 2 every fifth: each as torch would alone."""
    gradients = _gradients(seed, 30, 3, 4)
    start = torch.zeros(3, 4)
    theta = start.clone()
    adam = Adam(theta, learning_rate)
    taken: list[list[Tensor]] = [[], [], []]
    for step, gradient in enumerate(gradients):
        sites = 3 if step % 10 == 0 else 2 if step % 2 == 0 else 1
        adam.step(theta[:sites], gradient[:sites].clone())
        for site in range(sites):
            taken[site].append(gradient[site])
    assert [len(own) for own in taken] == [30, 15, 3]
    for site, own in enumerate(taken):
        expected = _torch_adam(start[site], torch.stack(own), learning_rate)
        assert torch.allclose(theta[site], expected, rtol=1e-5, atol=1e-6)


def test_sites_that_go_on_keep_their_moments() -> None:
    gradients = _gradients(1, 20, 3, 4)
    theta = torch.zeros(3, 4)
    adam = Adam(theta, 0.01)
    for gradient in gradients[:8]:
        adam.step(theta, gradient)
    keep = torch.tensor([0, 2])
    theta = theta[keep]
    adam.select(keep)
    for gradient in gradients[8:]:
        adam.step(theta, gradient[keep])
    for position, site in enumerate(keep.tolist()):
        expected = _torch_adam(torch.zeros(4), gradients[:, site], 0.01)
        assert torch.allclose(theta[position], expected, rtol=1e-5, atol=1e-6)
