"""pFedBayes: a Gaussian over the weights of each site's network, held by its KL divergence to a global
one.

X. Zhang, Y. Li, W. Li, K. Guo, Y. Shao. Personalized Federated Learning via Variational Bayesian Inference.
ICML 2022, Algorithm 1 and its equations (6) to (9): q_i = N(m, σ²) minimises E_q[L_i] + ζ·KL(q_i ‖ z), σ =
log(1 + e^ρ), with one sample of the weights per batch; the site's copy of z = N(w, σ_w²) then takes a step
on the same KL; the centre sets z ← (1 − β)z + β·mean z_i. Adam for both, as in the authors' code; q_i goes
on from round to round. Divided by N_i as all losses here are, the divergence counts ζ/N_i per row.
Predictions are those of the mean weights.

T2: a posterior of its own from z, under the divergence to the released z, no communication. T3: the mean of
z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmap.algorithm.fit.adam import Adam
from fedmap.algorithm.fit.rule import FitStart, Gradient, LocalRule, LocalSteps
from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.seeding import derive_seed, numpy_stream
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.method import Run, Trained, models_of
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod, average, equally, mean_of


@dataclass(frozen=True)
class Variational:
    """Steps on m and ρ of q_i, then on w and ρ_w of the site's z_i. θ is m; beside it: ρ, w, ρ_w."""

    zeta: float
    follow: bool = True  # False leaves z_i where it is, for a site that nobody listens to

    def begin(self, start: FitStart) -> LocalSteps:
        return _VariationalSteps(self, start)


class _VariationalSteps:
    def __init__(self, rule: Variational, start: FitStart) -> None:
        self._follow = rule.follow
        self._weight = (rule.zeta / start.rows).unsqueeze(1)  # (S, 1)
        self._noise = [numpy_stream(derive_seed(seed, "weights")) for seed in start.seeds]
        self._adams = [Adam(start.theta, start.learning_rate) for _ in range(4)]

    def step(self, theta: Tensor, beside: Tensor, gradient: Gradient) -> None:
        sites = len(theta)
        weight = self._weight[:sites]
        for_m, for_rho, for_w, for_rho_w = self._adams
        rho, w, rho_w = beside.unbind(1)
        sigma, sigma_w = F.softplus(rho), F.softplus(rho_w)
        noise = torch.stack([self._draw(site, theta.shape[1]) for site in range(sites)])
        grad = gradient(theta + sigma * noise)
        by_m, by_sigma = kl_gradients(theta, sigma, w, sigma_w)
        slope = torch.sigmoid(rho)  # ∂σ/∂ρ
        for_m.step(theta, grad + weight * by_m)
        for_rho.step(rho, (grad * noise + weight * by_sigma) * slope)
        if not self._follow:
            return
        sigma = F.softplus(rho)
        difference = w - theta
        by_w = difference / sigma_w.square()
        by_sigma_w = 1 / sigma_w - (sigma.square() + difference.square()) / sigma_w**3
        for_w.step(w, weight * by_w)
        for_rho_w.step(rho_w, weight * by_sigma_w * torch.sigmoid(rho_w))

    def select(self, keep: Tensor) -> None:
        self._weight = self._weight[keep]
        self._noise = [self._noise[site] for site in keep.tolist()]
        for adam in self._adams:
            adam.select(keep)

    def _draw(self, site: int, size: int) -> Tensor:
        return torch.from_numpy(self._noise[site].standard_normal(size, dtype="float32"))


def kl_gradients(m: Tensor, sigma: Tensor, w: Tensor, sigma_w: Tensor) -> tuple[Tensor, Tensor]:
    """∂/∂m and ∂/∂σ of KL(N(m, σ²) ‖ N(w, σ_w²)) = Σ log(σ_w/σ) + (σ² + (m − w)²)/(2σ_w²) − ½."""
    square = sigma_w.square()
    return (m - w) / square, sigma / square - 1 / sigma


class _PFedBayesScheme(Scheme["PFedBayes"]):
    keeps_models = True

    def __init__(self, run: Run, method: PFedBayes) -> None:
        super().__init__(run, method)
        # Of z; its mean is the shared θ.
        self._rho = torch.full_like(self.shared.theta, math.log(math.expm1(method.deviation)))
        self._spread: dict[str, Tensor] = {}  # ρ of each q_i; its mean is the site's own model

    def task(self, site: Site, seed: int) -> SiteTask:
        own = self.own.get(site.name, self.shared)
        beside = torch.stack([self._spread.get(site.name, self._rho), self.shared.theta, self._rho])
        return SiteTask(own.theta, own.buffers, site.data.train, site.data.validation, seed, beside)

    def absorb(self, answers: Answers) -> Absorbed:
        weighed, answered = answers.weighed, answers.answered
        self.own |= models_of(answered)
        self._spread |= {name: fit.beside[0] for name, fit in answered.items() if fit.beside is not None}
        weights = equally(weighed)
        kept = {name: fit.beside for name, fit in weighed.items() if fit.beside is not None}
        w = mean_of({name: beside[1] for name, beside in kept.items()})
        rho = mean_of({name: beside[2] for name, beside in kept.items()})
        buffers = average(self.model, weighed, weights).buffers
        self.shared = SiteParameters(
            torch.lerp(self.shared.theta.double(), w, self.method.beta).float(), buffers
        )
        self._rho = torch.lerp(self._rho.double(), rho, self.method.beta).float()
        return Absorbed(weights)

    def kept(self) -> Mapping[str, Tensor]:
        return {"rho": self._rho}


@dataclass(frozen=True)
class PFedBayes(SchemeMethod):
    zeta: float = 1.0
    deviation: float = 0.05  # σ of the first z, and of the first q_i
    beta: float = 1.0

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "zeta": (0.01, 0.1, 1.0, 10.0),
        "deviation": (0.02, 0.05, 0.2),
    }
    scheme = _PFedBayesScheme

    @property
    def rule(self) -> Variational:
        return Variational(self.zeta)

    def personal_step(self, trained: Trained) -> tuple[LocalRule | None, Tensor | None]:
        assert trained.prior is not None
        rho = trained.kept["rho"]
        return replace(self.rule, follow=False), torch.stack([rho, trained.prior.mu, rho])
