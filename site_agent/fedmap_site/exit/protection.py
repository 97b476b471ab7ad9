"""What a site may do to its parameters before they leave: a limit on their length, and noise.

The step from the global model is clipped, then Gaussian noise is added, in two groups: θ, and the batch-norm
statistics. Only what leaves is changed; the site keeps its exact model. The noise comes from the operating
system's secret randomness, so nobody can subtract it. No privacy budget is kept: this is a protection by the
site's own measure, not a proof.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap_site.policy import SitePolicy

_SEED_BYTES = 32


@dataclass(frozen=True)
class Protected:
    """Parameters as they leave."""

    parameters: SiteParameters
    clipped: bool
    noise: float  # σ of the noise that was added


def protect(parameters: SiteParameters, prior: Prior, policy: SitePolicy) -> Protected:
    """Clip and blur as the policy says; with no clip_norm nothing changes."""
    if not policy.clip_norm:
        return Protected(parameters, clipped=False, noise=0.0)
    sigma = policy.noise_multiplier * policy.clip_norm
    generator = np.random.default_rng(int.from_bytes(os.urandom(_SEED_BYTES), "big"))
    theta, clipped = _moved(parameters.theta, prior.mu, policy.clip_norm, sigma, generator)
    own, shared = parameters.buffers, prior.buffers
    statistics, also = _moved(
        torch.cat([own.mean, own.variance]),
        torch.cat([shared.mean, shared.variance]),
        policy.clip_norm,
        sigma,
        generator,
    )
    mean, variance = torch.split(statistics, [own.mean.numel(), own.variance.numel()])
    buffers = Buffers(mean.clone(), variance.clamp(min=0), own.count)
    return Protected(SiteParameters(theta, buffers), clipped or also, sigma)


def _moved(
    own: Tensor, shared: Tensor, limit: float, sigma: float, generator: np.random.Generator
) -> tuple[Tensor, bool]:
    """`shared` plus the clipped and blurred step to `own`, and whether the step was too long."""
    step = own.double() - shared.double()
    length = float(torch.linalg.vector_norm(step))
    clipped = length > limit
    if not clipped and not sigma:
        return own, False
    if clipped:
        step = step * (limit / length)
    if sigma:
        step = step + torch.from_numpy(generator.normal(0.0, sigma, step.numel()))
    moved = (shared.double() + step).float()
    return moved, clipped
