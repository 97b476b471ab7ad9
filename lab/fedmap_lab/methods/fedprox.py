"""FedProx: FedAvg with a proximal term that holds the local models near the global one.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated Optimization in Heterogeneous
Networks. MLSys 2020, Algorithm 2; the local objective is its equation (2), F_k(w) + (μ/2)‖w − w^t‖². All
sites take part, so the average is by sample count, as in FedAvg; with μ = 0 this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedmap.algorithm.fit.rule import AddedGradient, LocalRule
from fedmap.algorithm.fit.values import SiteTask
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.scheme import Scheme, SchemeMethod


@dataclass(frozen=True)
class Proximal(AddedGradient):
    """The term (λ/2)‖θ − w‖², Ditto's too: adds λ(θ − w) to the gradient. Beside θ: w."""

    strength: float

    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:
        gradient.add_(theta, alpha=self.strength).sub_(beside[:, 0], alpha=self.strength)


class _FedProxScheme(Scheme["FedProx"]):
    def task(self, site: Site, seed: int) -> SiteTask:
        return replace(super().task(site, seed), beside=self.shared.theta[None])


@dataclass(frozen=True)
class FedProx(SchemeMethod):
    mu: float = 0.01

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"mu": (0.001, 0.01, 0.1, 1.0)}
    scheme = _FedProxScheme

    @property
    def rule(self) -> LocalRule:
        return Proximal(self.mu)
