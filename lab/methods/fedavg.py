"""FedAvg: train from the global model, average by sample count, one model for all.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017, Algorithm 1 (all sites take part in every round).

T2 and T3 by the convention for methods without a prior: T2 fine-tunes the global model, T3 uses it as it
is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.algorithm.aggregation import SiteParameters
from lab.engines import Engine
from lab.federation import Federation, Site
from lab.methods.method import Method, Served, Trained, Watch, common_start
from lab.methods.rounds import fine_tune, run_rounds
from lab.methods.scheme import baseline_settings


@dataclass(frozen=True)
class FedAvg(Method):
    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        settings = baseline_settings(federation.settings)
        start = common_start(federation, settings.prior, seed)
        trained = run_rounds(federation, engine, settings, start, rounds, seed, watch, penalised=False)
        assert trained.prior is not None
        shared = SiteParameters(trained.prior.mu, trained.prior.buffers)
        return replace(trained, personal=dict.fromkeys(trained.personal, shared))

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
        return fine_tune(federation, engine, settings, trained.prior, sites, seed, penalised=False)
