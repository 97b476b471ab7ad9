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

import torch

from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed
from fedmap.study.engine import Engine
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.method import Method, Served, Trained, Watch, common_start
from fedmap_lab.methods.proximal import Proximal
from fedmap_lab.methods.rounds import fine_tune, sort_out
from fedmap_lab.methods.scheme import (
    Absorbed,
    Answers,
    Scheme,
    average,
    baseline_settings,
    by_rows,
    run_scheme,
)


@dataclass(frozen=True)
class Ditto(Method):
    lam: float = 0.1

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"lam": (0.01, 0.1, 1.0)}

    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        first = common_start(federation, baseline_settings(federation.settings).prior, seed)
        scheme = _DittoScheme(federation, SiteParameters(first.mu, first.buffers), engine, self.lam, seed)
        return run_scheme(scheme, engine, rounds, seed, watch)

    def personalise(
        self,
        federation: Federation,
        engine: Engine,
        trained: Trained,
        sites: tuple[Site, ...],
        rounds: int,  # noqa: ARG002 - fine-tuning has its own epochs
        seed: int,
    ) -> Served:
        assert trained.prior is not None
        settings = baseline_settings(federation.settings)
        w, rule = trained.prior.mu[None], Proximal(self.lam)
        return fine_tune(
            federation,
            engine,
            settings,
            trained.prior,
            sites,
            seed,
            penalised=False,
            rule=rule,
            beside=w,
        )


class _DittoScheme(Scheme):
    """The round's own fit is the global model's; the personal fits run before the average replaces w^t."""

    def __init__(
        self, federation: Federation, start: SiteParameters, engine: Engine, lam: float, seed: int
    ) -> None:
        super().__init__(federation, federation.model, start)
        self._engine = engine
        self._rule = Proximal(lam)
        self._seed = seed
        self._start = start
        self._own: dict[str, SiteParameters] = {}

    def absorb(self, answers: Answers) -> Absorbed:
        weighed = answers.weighed
        sites = self.federation.tier(1)
        at = Prior(self.shared.theta, self.shared.buffers, torch.zeros(0))
        tasks = [self._personal_task(site, answers.number) for site in sites]
        fits = self._engine.fit(self.model, self.settings, at, tasks, penalised=False, rule=self._rule)
        own, failed = sort_out(answers.number, sites, fits)
        self._own |= {name: SiteParameters(fit.theta, fit.buffers) for name, fit in own.items()}
        weights = by_rows(weighed)
        self.shared = average(self.model, weighed, weights)
        return Absorbed(weights, failed)

    def personal(self) -> Mapping[str, SiteParameters]:
        return dict(self._own)

    def _personal_task(self, site: Site, number: int) -> SiteTask:
        own = self._own.get(site.name, self._start)
        seed = derive_seed(self._seed, "personal", number, site.name)
        data = site.data
        return SiteTask(
            own.theta, own.buffers, data.train, data.validation, seed, beside=self.shared.theta[None]
        )
