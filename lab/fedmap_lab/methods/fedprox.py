"""FedProx: FedAvg with a proximal term that holds the local models near the global one.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated Optimization in Heterogeneous
Networks. MLSys 2020, Algorithm 2; the local objective is its equation (2), F_k(w) + (μ/2)‖w − w^t‖². All
sites take part, so the average is by sample count, as in FedAvg; with μ = 0 this is FedAvg.

T2 and T3 by the convention for methods without a prior: T2 fine-tunes the global model (without the term),
T3 uses it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedmap.algorithm.fit.values import SiteTask
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.proximal import Proximal
from fedmap_lab.methods.scheme import Beginning, Scheme, SchemeMethod


@dataclass(frozen=True)
class FedProx(SchemeMethod):
    mu: float = 0.01

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"mu": (0.001, 0.01, 0.1, 1.0)}

    def scheme(self, beginning: Beginning) -> Scheme:
        return _FedProxScheme(beginning, self.mu)


class _FedProxScheme(Scheme):
    def __init__(self, beginning: Beginning, mu: float) -> None:
        super().__init__(beginning)
        self.rule = Proximal(mu)

    def task(self, site: Site, seed: int) -> SiteTask:
        return replace(super().task(site, seed), beside=self.shared.theta[None])
