"""FedDyn: each site's objective is bent so that the sites' optima and the federation's agree.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama. Federated Learning
Based on Dynamic Regularization. ICLR 2021, Algorithm 1. A site minimises L_k(θ) − ⟨g_k, θ⟩ + (α/2)‖θ − w‖²,
then g_k ← g_k − α(θ_k − w); the centre keeps h ← h − α·(1/m)·Σ(θ_k − w) and sets w ← mean θ_k − h/α. Sites
count equally, as there.

T2 and T3 by the convention for methods without a prior: T2 fine-tunes the global model (no dynamic terms),
T3 uses it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmap.algorithm.fit.rule import AddedGradient
from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.scheme import Absorbed, Answers, Beginning, Scheme, SchemeMethod, average, equally


@dataclass(frozen=True)
class FedDyn(SchemeMethod):
    alpha: float = 0.1

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"alpha": (0.01, 0.1, 1.0)}

    def scheme(self, beginning: Beginning) -> Scheme:
        return _FedDynScheme(beginning, self.alpha)


@dataclass(frozen=True)
class Dynamic(AddedGradient):
    """Adds α(θ − w) − g_k to the gradient. Beside θ: w and g_k."""

    alpha: float

    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:
        gradient.add_(theta - beside[:, 0], alpha=self.alpha).sub_(beside[:, 1])


class _FedDynScheme(Scheme):
    def __init__(self, beginning: Beginning, alpha: float) -> None:
        super().__init__(beginning)
        self.rule = Dynamic(alpha)
        self._alpha = alpha
        self._sites = len(self.federation.tier(1))
        self.state = torch.zeros_like(self.shared.theta, dtype=torch.float64)  # h
        self.gradient: dict[str, Tensor] = {}  # g_k, zero before a site's first answer

    def task(self, site: Site, seed: int) -> SiteTask:
        w = self.shared.theta
        own = self.gradient.get(site.name, torch.zeros_like(w, dtype=torch.float64)).float()
        return replace(super().task(site, seed), beside=torch.stack([w, own]))

    def absorb(self, answers: Answers) -> Absorbed:
        weighed = answers.weighed
        weights = equally(weighed)
        mean = average(self.model, weighed, weights)
        w = self.shared.theta.double()
        moved = torch.zeros_like(w)
        for name in sorted(weighed):
            change = weighed[name].theta.double() - w
            moved += change
            self.gradient[name] = self.gradient.get(name, torch.zeros_like(w)) - self._alpha * change
        self.state = self.state - self._alpha * moved / self._sites
        self.shared = SiteParameters((mean.theta.double() - self.state / self._alpha).float(), mean.buffers)
        return Absorbed(weights)
