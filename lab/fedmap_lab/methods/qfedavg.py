"""q-FedAvg: sites where the global model does badly pull harder.

T. Li, M. Sanjabi, A. Beirami, V. Smith. Fair Resource Allocation in Federated Learning. ICLR 2020,
Algorithm 2: Δw_k = L(w − w̄_k), Δ_k = F_k(w)^q Δw_k, h_k = q F_k(w)^(q−1) ‖Δw_k‖² + L F_k(w)^q, w' = w −
ΣΔ_k / Σh_k, with F_k(w) the loss per training row. The paper takes L = 1/η of its SGD; Adam's steps have no
such η, so L is a setting of its own. With q = 0 the step is the plain mean of the local models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmap.algorithm.fit.batched import loss_per_row
from fedmap.algorithm.fit.batches import pack
from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod, average

SMALLEST_LOSS = 1e-10  # F^(q−1) has no value at 0


@dataclass(frozen=True)
class FairStep:
    """w' and the share of each site in it."""

    theta: Tensor  # (d,)
    weights: Mapping[str, float]


def fair_step(
    w: Tensor, local: Mapping[str, Tensor], losses: Mapping[str, float], q: float, lipschitz: float
) -> FairStep:
    """The server's step of Algorithm 2, in float64."""
    w = w.double()
    total = torch.zeros_like(w)
    divisor = 0.0
    pulls: dict[str, float] = {}
    for name in sorted(local):
        loss = max(losses[name], SMALLEST_LOSS)
        change = lipschitz * (w - local[name].double())
        pulls[name] = loss**q
        total += pulls[name] * change
        divisor += q * loss ** (q - 1) * float(change.square().sum()) + lipschitz * loss**q
    share = sum(pulls.values())
    return FairStep((w - total / divisor).float(), {name: pull / share for name, pull in pulls.items()})


class _QFedAvgScheme(Scheme["QFedAvg"]):
    def absorb(self, answers: Answers) -> Absorbed:
        weighed = answers.weighed
        sites = {site.name: site for site in self.federation.tier(1)}
        losses = {name: _loss(self.model, self.shared, sites[name]) for name in weighed}
        local = {name: fit.theta for name, fit in weighed.items()}
        step = fair_step(self.shared.theta, local, losses, self.method.q, self.method.lipschitz)
        self.shared = SiteParameters(step.theta, average(self.model, weighed, step.weights).buffers)
        return Absorbed(step.weights)


@dataclass(frozen=True)
class QFedAvg(SchemeMethod):
    q: float = 1.0
    lipschitz: float = 1.0

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"q": (0.1, 1.0, 5.0), "lipschitz": (0.1, 1.0, 10.0)}
    scheme = _QFedAvgScheme


def _loss(model: Model, shared: SiteParameters, site: Site) -> float:
    """F_k(w): the global model's loss per training row."""
    rows = pack([site.data.train], model.likelihood)
    buffers = Buffers(shared.buffers.mean[None], shared.buffers.variance[None], shared.buffers.count[None])
    return float(loss_per_row(model, shared.theta[None], buffers, rows, rows.outcome())[0])
