"""The penalty R(θ; μ, ψ) = f_ψ(θ, μ) + α‖θ−μ‖² + ε(‖θ‖² + ‖μ‖²), and its gradient in θ.

`AnchoredPenalty` is R for one round: μ and ψ fixed, everything that depends on them alone computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.convex_network import ConvexNetwork, Psi
from fedmap.algorithm.settings import PriorSettings


@dataclass(frozen=True)
class ConvexPart:
    """f_ψ(·, μ) for one round."""

    network: ConvexNetwork
    psi: Psi
    anchor: Tensor  # (T, h₁): the first layer's share of μ


@dataclass(frozen=True)
class AnchoredPenalty:
    """R(·; μ, ψ) for S sites at once."""

    settings: PriorSettings
    mu: Tensor  # (d,)
    mu_square: Tensor  # ‖μ‖²
    convex: ConvexPart | None  # None: the quadratic prior alone

    def convex_value(self, theta: Tensor) -> Tensor:
        """f_ψ(θ, μ) alone, (S,)."""
        if self.convex is None:
            return theta.new_zeros(theta.shape[0])
        return self.convex.network.value(self.convex.psi, self.convex.anchor, theta)

    def value(self, theta: Tensor) -> Tensor:
        """R for each site: (S, d) → (S,). Differentiable."""
        quadratic = self.settings.alpha * (theta - self.mu).square().sum(-1)
        shrinkage = self.settings.epsilon * (theta.square().sum(-1) + self.mu_square)
        return self.convex_value(theta) + quadratic + shrinkage

    def plain_value(self, theta: Tensor, mu: Tensor) -> Tensor:
        """R as a function of (θ, μ) jointly, nothing cached: what autograd differentiates as a reference."""
        convex = self.convex
        if convex is not None:
            convex = replace(convex, anchor=convex.network.anchor(convex.psi, mu))
        return replace(self, mu=mu, mu_square=mu.square().sum(), convex=convex).value(theta)

    def gradient(self, theta: Tensor) -> Tensor:
        """∂R/∂θ in closed form, (S, d)."""
        return self.add_gradient(theta, torch.zeros_like(theta))

    def add_gradient(self, theta: Tensor, total: Tensor) -> Tensor:
        """Add ∂R/∂θ to `total` (S, d), in place."""
        alpha, epsilon = self.settings.alpha, self.settings.epsilon
        total.add_(theta, alpha=2 * (alpha + epsilon)).sub_(self.mu, alpha=2 * alpha)
        if self.convex is not None:
            self.convex.network.add_theta_gradient(self.convex.psi, self.convex.anchor, theta, total)
        return total


def anchored_penalty(
    model: ParameterSpec, settings: PriorSettings, mu: Tensor, psi: Tensor
) -> AnchoredPenalty:
    """Prepare R for a round under the prior γ = (μ, ψ)."""
    convex = None
    if settings.convex:
        network = ConvexNetwork(model, settings)
        views = network.psi(psi)
        convex = ConvexPart(network, views, network.anchor(views, mu))
    return AnchoredPenalty(settings, mu, mu.square().sum(), convex)
