"""FedAvg (McMahan et al., 2017): train from the global model, average by sample count, one model for all.

T2 follows the paper's convention for methods without a prior: fine-tune the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from common.algorithm.aggregation import SiteParameters
from common.algorithm.settings import AggregationSettings, FedmapSettings
from lab.engines import Engine
from lab.federation import Federation, Site
from lab.methods.method import FailedSite, Trained, Watch, common_start
from lab.methods.rounds import fine_tune, run_rounds


def fedavg_settings(settings: FedmapSettings) -> FedmapSettings:
    return FedmapSettings(
        prior=replace(settings.prior, convex=False),
        training=replace(settings.training, start="global"),
        aggregation=AggregationSettings(weighting="sample_count", psi_steps=0),
    )


class FedAvg:
    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        settings = fedavg_settings(federation.settings)
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
    ) -> tuple[Mapping[str, SiteParameters], tuple[FailedSite, ...]]:
        assert trained.prior is not None
        settings = fedavg_settings(federation.settings)
        return fine_tune(federation, engine, settings, trained.prior, sites, seed, penalised=False)
