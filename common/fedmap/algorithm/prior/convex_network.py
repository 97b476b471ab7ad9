"""The input-convex network f_ψ(θ, μ): one small network per parameter tensor, summed.

For a tensor with values θ_t, μ_t (sketched to k numbers where the plan says so)

    a₁ = A θ_t + B μ_t + b₁,   a₂ = U softplus(a₁) + b₂,   f_t = v · softplus(a₂),   U ≥ 0, v ≥ 0.

Convex in (θ, μ) jointly: the first layer is linear, and non-negative sums of increasing convex functions
stay convex. No output bias, so f ≥ 0. Gradients in θ and in ψ are in closed form here; the part of the
first layer that sees only μ is computed once (`anchor`) and reused for a whole round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.sketch import Sketch
from fedmap.algorithm.seeding import derive_seed, torch_stream
from fedmap.algorithm.settings import PriorSettings


@dataclass(frozen=True)
class Psi:
    """Named views of the flat ψ. T tensors, h₁ and h₂ hidden units."""

    theta_weights: tuple[Tensor, ...]  # A_t (h₁, k_t)
    mu_weights: tuple[Tensor, ...]  # B_t (h₁, k_t)
    first_bias: Tensor  # b₁ (T, h₁)
    second_weight: Tensor  # U (T, h₂, h₁), not negative
    second_bias: Tensor  # b₂ (T, h₂)
    output: Tensor  # v (T, h₂), not negative


@dataclass(frozen=True)
class ConvexNetwork:
    """f_ψ for parameter vectors laid out by `model`. Holds no ψ."""

    model: ParameterSpec
    settings: PriorSettings

    @cached_property
    def sketch(self) -> Sketch:
        return Sketch(self.model.sizes, self.settings.sketch, derive_seed(self.settings.seed, "sketch"))

    @cached_property
    def spec(self) -> ParameterSpec:
        h1, h2 = self.settings.hidden
        tensors = len(self.model.names)
        widths = self.sketch.widths
        names = [f"theta_weight.{name}" for name in self.model.names]
        names += [f"mu_weight.{name}" for name in self.model.names]
        shapes: list[tuple[int, ...]] = [(h1, width) for width in widths + widths]
        names += ["first_bias", "second_weight", "second_bias", "output"]
        shapes += [(tensors, h1), (tensors, h2, h1), (tensors, h2), (tensors, h2)]
        return ParameterSpec(tuple(names), tuple(shapes))

    def initialise(self) -> Tensor:
        """First layer as torch.nn.Linear; the non-negative layers start as averages, so f starts small."""
        generator = torch_stream(derive_seed(self.settings.seed, "psi"))
        h1, h2 = self.settings.hidden
        tensors = len(self.model.names)
        bounds = [1.0 / math.sqrt(2 * width) for width in self.sketch.widths]
        parts = [
            torch.empty(h1, width).uniform_(-bound, bound, generator=generator)
            for width, bound in zip(self.sketch.widths * 2, bounds * 2, strict=True)
        ]
        parts.append(torch.zeros(tensors, h1))
        parts.append(torch.empty(tensors, h2, h1).uniform_(0, 2.0 / h1, generator=generator))
        parts.append(torch.zeros(tensors, h2))
        parts.append(torch.empty(tensors, h2).uniform_(0, 2.0 / h2, generator=generator))
        return self.spec.flatten(tuple(parts))

    def psi(self, flat: Tensor) -> Psi:
        views = self.spec.views(flat)
        tensors = len(self.model.names)
        return Psi(views[:tensors], views[tensors : 2 * tensors], *views[2 * tensors :])

    def project(self, flat: Tensor) -> Tensor:
        """ψ with every weight after the first layer made non-negative, in place."""
        psi = self.psi(flat)
        psi.second_weight.clamp_(min=0)
        psi.output.clamp_(min=0)
        return flat

    def anchor(self, psi: Psi, mu: Tensor) -> Tensor:
        """B μ + b₁ for every tensor: (T, h₁), constant through a round."""
        parts = self.sketch.apply(mu)
        return torch.stack([w @ part for w, part in zip(psi.mu_weights, parts, strict=True)]) + psi.first_bias

    def value(self, psi: Psi, anchor: Tensor, theta: Tensor) -> Tensor:
        """f for each of S sites: (S, d) → (S,). Differentiable in θ and ψ."""
        _, second = self._layers(psi, anchor, self.sketch.apply(theta))
        return (F.softplus(second) * psi.output.unsqueeze(1)).sum((0, 2))

    def add_theta_gradient(self, psi: Psi, anchor: Tensor, theta: Tensor, total: Tensor) -> None:
        """Add ∂f/∂θ to `total` (S, d): long vectors are passed over once less than by adding it after."""
        first, second = self._layers(psi, anchor, self.sketch.apply(theta))
        _, back = self._back(psi, first, second)
        if self.sketch.width:
            parts = tuple(g @ w for g, w in zip(back, psi.theta_weights, strict=True))
            self.sketch.add_transpose(parts, total)
            return
        for g, w, into in zip(
            back, psi.theta_weights, torch.split(total, list(self.model.sizes), dim=-1), strict=True
        ):
            into.addmm_(g, w)

    def add_psi_gradient(
        self, psi: Psi, anchor: Tensor, theta: Tensor, mu: Tensor, weight: Tensor, total: Tensor
    ) -> None:
        """Add Σ_k w_k ∂f(θ_k, μ)/∂ψ to `total` (p,), for a block of sites θ (K, d) with weights w (K,)."""
        parts = self.sketch.apply(theta)
        first, second = self._layers(psi, anchor, parts)
        grad_second, grad_first = self._back(psi, first, second)  # (T, K, h₂), (T, K, h₁)
        grad_second = grad_second * weight.unsqueeze(-1)
        grad_first = grad_first * weight.unsqueeze(-1)
        into = self.psi(total)
        summed = grad_first.sum(1)  # (T, h₁)
        for t, (part, mu_part) in enumerate(zip(parts, self.sketch.apply(mu), strict=True)):
            into.theta_weights[t].addmm_(grad_first[t].T, part)
            into.mu_weights[t].addr_(summed[t], mu_part)
        into.first_bias.add_(summed)
        into.second_weight.baddbmm_(grad_second.transpose(1, 2), F.softplus(first))
        into.second_bias.add_(grad_second.sum(1))
        into.output.add_((F.softplus(second) * weight.unsqueeze(-1)).sum(1))

    def _layers(self, psi: Psi, anchor: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Both layers before their softplus: (T, S, h₁), (T, S, h₂)."""
        seen = [part @ w.T for part, w in zip(parts, psi.theta_weights, strict=True)]
        first = torch.stack(seen) + anchor.unsqueeze(1)
        weight = psi.second_weight.transpose(1, 2)
        return first, torch.baddbmm(psi.second_bias.unsqueeze(1), F.softplus(first), weight)

    @staticmethod
    def _back(psi: Psi, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        grad_second = psi.output.unsqueeze(1) * torch.sigmoid(second)  # (T, S, h₂)
        return grad_second, torch.bmm(grad_second, psi.second_weight) * torch.sigmoid(first)
