"""Individual training: every site alone, with the federation's whole budget of epochs and early stopping.

T2: a T2 site alone, in the same way. T3: nothing, since a T3 site does not train and there is no global
model.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.seeding import derive_seed
from fedmap.errors import TrainingError
from fedmap.study.engine import Engine
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.method import (
    Method,
    Served,
    Trained,
    Watch,
    common_start,
    models_of,
    sort_out,
    whole_budget,
)


@dataclass(frozen=True)
class Individual(Method):
    def train(
        self,
        federation: Federation,
        engine: Engine,
        rounds: int,
        seed: int,
        watch: Watch,  # noqa: ARG002 - there are no rounds to watch
    ) -> Trained:
        personal, failed = self._alone(federation, engine, federation.tier(1), rounds, seed)
        if not personal:
            raise TrainingError(
                f"individual training failed at every site ({failed[0].reason})",
                hint="lower training.learning_rate, or check the feature ranges in the plan",
            )
        return Trained(personal, prior=None, failed=failed)

    def personalise(
        self,
        federation: Federation,
        engine: Engine,
        trained: Trained,  # noqa: ARG002 - nothing is shared
        sites: tuple[Site, ...],
        rounds: int,
        seed: int,
    ) -> Served:
        return self._alone(federation, engine, sites, rounds, seed)

    @staticmethod
    def _alone(
        federation: Federation, engine: Engine, sites: tuple[Site, ...], rounds: int, seed: int
    ) -> Served:
        if not sites:
            return {}, ()
        start = common_start(federation, federation.settings.prior, seed)
        settings = whole_budget(federation.settings, rounds)
        tasks = [
            SiteTask(
                start.mu, start.buffers, s.data.train, s.data.validation, derive_seed(seed, "fit", 1, s.name)
            )
            for s in sites
        ]
        fits = engine.fit(federation.model, settings, start, tasks, penalised=False)
        answered, failed = sort_out(1, sites, fits)
        return models_of(answered), failed
