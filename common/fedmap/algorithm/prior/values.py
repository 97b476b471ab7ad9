"""The prior γ = (μ, ψ) and where it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.seeding import derive_seed, numpy_stream
from fedmap.algorithm.settings import PriorSettings

MOST_DRAWS = 20  # of the eICU network about three in four are awake


@dataclass(frozen=True)
class Prior:
    """A global model with the parameters of the learned penalty. Immutable: a round makes a new one."""

    mu: Tensor  # (d,)
    buffers: Buffers  # pooled batch-norm statistics, so that μ can predict by itself
    psi: Tensor  # (p,); empty where the prior is quadratic only


def draw_initial_site(sites: tuple[str, ...], seed: int) -> str:
    """The site j whose fresh model becomes μ⁰ and every θ_k⁰. Does not depend on the order of `sites`."""
    ordered = sorted(sites)
    return ordered[int(numpy_stream(derive_seed(seed, "initial-site")).integers(len(ordered)))]


def initial_parameters(network: Network, seed: int, site: str) -> Tensor:
    """The fresh model that site j provides: of its draws the first that is awake, or the last of them.

    In a narrow layer a draw may leave a single ReLU unit above zero, or none. Hardly a gradient passes it,
    and a pull to such a μ can keep it so: the whole study then learns one risk for all (docs/adr/0036).
    """
    theta = network.initialise(derive_seed(seed, "initial-model", site))
    for again in range(1, MOST_DRAWS):
        if network.is_awake(theta):
            break
        theta = network.initialise(derive_seed(seed, "initial-model", site, again))
    return theta


def initial_prior(network: Network, settings: PriorSettings, theta: Tensor) -> Prior:
    """γ⁰ from the parameters of site j and a fresh ψ."""
    psi = ConvexNetwork(network.spec, settings).initialise() if settings.convex else torch.zeros(0)
    return Prior(theta.clone(), network.initial_buffers(), psi)
