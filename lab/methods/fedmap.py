"""FedMAP: local MAP estimation under a learned convex prior; the paper's algorithms for T1 and T2."""

from __future__ import annotations

from collections.abc import Mapping

from common.algorithm.aggregation import SiteParameters
from lab.engines import Engine
from lab.federation import Federation, Site
from lab.methods.method import FailedSite, Trained, Watch, common_start
from lab.methods.rounds import fine_tune, run_rounds


class FedMap:
    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        start = common_start(federation, federation.settings.prior, seed)
        return run_rounds(federation, engine, federation.settings, start, rounds, seed, watch)

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
        return fine_tune(federation, engine, federation.settings, trained.prior, sites, seed, penalised=True)
