"""Ditto: a global model by FedAvg, and beside it a personal model of each site held near the global one.

T. Li, S. Hu, A. Beirami, V. Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML
2021, Algorithm 1 with FedAvg as its global solver: in each round a site trains the global model w and, from
where it was, its own v_k on F_k(v) + (λ/2)‖v − w^t‖². Both get the round's epochs, so Ditto computes twice
what FedAvg does; that is the method, and the budget of each model is everybody's.

T2: a personal model from w under the same λ, no communication. T3: the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.seeding import derive_seed
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.fedprox import Proximal
from fedmap_lab.methods.method import Trained, models_of, sort_out
from fedmap_lab.methods.scheme import Absorbed, Answers, Scheme, SchemeMethod


class _DittoScheme(Scheme["Ditto"]):
    """The round's own fit is the global model's; the personal fits run before the average replaces w^t."""

    keeps_models = True

    def absorb(self, answers: Answers) -> Absorbed:
        run, sites = self.run, self.federation.tier(1)
        tasks = [self._personal_task(site, answers.number) for site in sites]
        rule = Proximal(self.method.lam)
        fits = run.engine.fit(self.model, self.settings, self.at, tasks, penalised=False, rule=rule)
        own, failed = sort_out(answers.number, sites, fits)
        self.own |= models_of(own)
        return Absorbed(super().absorb(answers).weights, failed)

    def _personal_task(self, site: Site, number: int) -> SiteTask:
        own = self.own.get(site.name, self.first)
        seed = derive_seed(self.run.seed, "personal", number, site.name)
        beside = self.shared.theta[None]
        return SiteTask(own.theta, own.buffers, site.data.train, site.data.validation, seed, beside=beside)


@dataclass(frozen=True)
class Ditto(SchemeMethod):
    lam: float = 0.1

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"lam": (0.01, 0.1, 1.0)}
    scheme = _DittoScheme

    def personal_step(self, trained: Trained) -> tuple[LocalRule | None, Tensor | None]:
        assert trained.prior is not None
        return Proximal(self.lam), trained.prior.mu[None]
