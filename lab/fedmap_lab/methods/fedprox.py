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
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.proximal import Proximal
from fedmap_lab.methods.scheme import Absorbed, Answers, GlobalModelMethod, Scheme, average, by_rows


@dataclass(frozen=True)
class FedProx(GlobalModelMethod):
    mu: float = 0.01

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"mu": (0.001, 0.01, 0.1, 1.0)}

    def scheme(self, federation: Federation, start: SiteParameters) -> Scheme:
        return _FedProxScheme(federation, start, self.mu)


class _FedProxScheme(Scheme):
    def __init__(self, federation: Federation, start: SiteParameters, mu: float) -> None:
        super().__init__(federation, federation.model, start)
        self.rule = Proximal(mu)

    def task(self, site: Site, seed: int) -> SiteTask:
        return replace(super().task(site, seed), beside=self.shared.theta[None])

    def absorb(self, answers: Answers) -> Absorbed:
        weighed = answers.weighed
        weights = by_rows(weighed)
        self.shared = average(self.model, weighed, weights)
        return Absorbed(weights)
