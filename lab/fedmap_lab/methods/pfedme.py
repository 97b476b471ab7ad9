"""pFedMe: personal models are the proximal points of a Moreau envelope, the global model follows them.

C. T. Dinh, N. H. Tran, T. D. Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020,
Algorithm 1: for each mini-batch a site finds θ̃ ≈ argmin f(θ; batch) + (λ/2)‖θ − w_i‖² by K inner steps,
then w_i ← w_i − ηλ(w_i − θ̃) (its equations 3, 5 and 7); the centre sets w ← (1 − β)w + β·mean w_i, sites
counting equally. The inner steps are Adam's. K steps on each batch cost K gradients; the epochs are
everybody's.

T2: the proximal point of the released w, K inner steps per batch, no communication. T3: the global model w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmap.algorithm.fit.adam import Adam
from fedmap.algorithm.fit.rule import FitStart, Gradient, LocalRule, LocalSteps
from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.method import Trained, models_of
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod, average, equally, mean_of


@dataclass(frozen=True)
class Moreau:
    """K inner steps towards the proximal point θ̃, then w_i moves ηλ of the way to it. Beside θ: w_i."""

    lam: float
    pull: float
    inner_steps: int

    def begin(self, start: FitStart) -> LocalSteps:
        return _MoreauSteps(self, Adam(start.theta, start.learning_rate))


class _MoreauSteps:
    def __init__(self, rule: Moreau, adam: Adam) -> None:
        self._rule = rule
        self._adam = adam

    def step(self, theta: Tensor, beside: Tensor, gradient: Gradient) -> None:
        anchor = beside[:, 0]
        for _ in range(self._rule.inner_steps):
            self._adam.step(theta, gradient(theta).add_(theta - anchor, alpha=self._rule.lam))
        anchor.lerp_(theta, self._rule.pull)

    def select(self, keep: Tensor) -> None:
        self._adam.select(keep)


class _PFedMeScheme(Scheme["PFedMe"]):
    keeps_models = True

    def task(self, site: Site, seed: int) -> SiteTask:
        return replace(super().task(site, seed), beside=self.shared.theta[None])

    def absorb(self, answers: Answers) -> Absorbed:
        weighed = answers.weighed
        self.own |= models_of(answers.answered)
        weights = equally(weighed)
        followed = mean_of({name: fit.beside[0] for name, fit in weighed.items() if fit.beside is not None})
        w = torch.lerp(self.shared.theta.double(), followed, self.method.beta).float()
        self.shared = SiteParameters(w, average(self.model, weighed, weights).buffers)
        return Absorbed(weights)


@dataclass(frozen=True)
class PFedMe(SchemeMethod):
    lam: float = 1.0
    pull: float = 0.3  # ηλ: how much of the way to θ̃ the local w_i goes with each batch
    inner_steps: int = 5
    beta: float = 1.0

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"lam": (0.1, 1.0, 15.0), "pull": (0.1, 0.3, 1.0)}
    scheme = _PFedMeScheme

    @property
    def rule(self) -> Moreau:
        return Moreau(self.lam, self.pull, self.inner_steps)

    def personal_step(self, trained: Trained) -> tuple[LocalRule | None, Tensor | None]:
        assert trained.prior is not None
        return replace(self.rule, pull=0.0), trained.prior.mu[None]  # the released w stays where it is
