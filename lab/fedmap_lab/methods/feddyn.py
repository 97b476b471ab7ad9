"""FedDyn: each site's objective is bent so that the sites' optima and the federation's agree.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama. Federated Learning
Based on Dynamic Regularization. ICLR 2021, Algorithm 1. A site minimises L_k(θ) − ⟨g_k, θ⟩ + (α/2)‖θ − w‖²,
then g_k ← g_k − α(θ_k − w); the centre keeps h ← h − α·(1/m)·Σ(θ_k − w) and sets w ← mean θ_k − h/α. Sites
count equally, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmap.algorithm.fit.rule import AddedGradient, LocalRule
from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.method import Run
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod, average, equally


@dataclass(frozen=True)
class Dynamic(AddedGradient):
    """Adds α(θ − w) − g_k to the gradient. Beside θ: w and g_k."""

    alpha: float

    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:
        gradient.add_(theta - beside[:, 0], alpha=self.alpha).sub_(beside[:, 1])


class _FedDynScheme(Scheme["FedDyn"]):
    def __init__(self, run: Run, method: FedDyn) -> None:
        super().__init__(run, method)
        self.state = torch.zeros_like(self.shared.theta, dtype=torch.float64)  # h
        self.gradient: dict[str, Tensor] = {}  # g_k, zero before a site's first answer

    def task(self, site: Site, seed: int) -> SiteTask:
        w = self.shared.theta
        own = self.gradient.get(site.name, torch.zeros_like(w, dtype=torch.float64)).float()
        return replace(super().task(site, seed), beside=torch.stack([w, own]))

    def absorb(self, answers: Answers) -> Absorbed:
        alpha, weighed = self.method.alpha, answers.weighed
        weights = equally(weighed)
        mean = average(self.model, weighed, weights)
        w = self.shared.theta.double()
        moved = torch.zeros_like(w)
        for name in sorted(weighed):
            change = weighed[name].theta.double() - w
            moved += change
            self.gradient[name] = self.gradient.get(name, torch.zeros_like(w)) - alpha * change
        self.state = self.state - alpha * moved / len(self.federation.tier(1))
        self.shared = SiteParameters((mean.theta.double() - self.state / alpha).float(), mean.buffers)
        return Absorbed(weights)


@dataclass(frozen=True)
class FedDyn(SchemeMethod):
    alpha: float = 0.1

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"alpha": (0.01, 0.1, 1.0)}
    scheme = _FedDynScheme

    @property
    def rule(self) -> LocalRule:
        return Dynamic(self.alpha)
