"""Individual training: every site alone, with the federation's whole budget of epochs and early stopping.

T2: a T2 site alone, in the same way. T3: nothing, since a T3 site does not train and there is no global
model.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.algorithm.fit.values import SiteTask
from fedmap.algorithm.seeding import derive_seed
from fedmap.errors import TrainingError
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.method import Method, Run, Served, Trained, Watch, models_of, sort_out, whole_budget


@dataclass(frozen=True)
class Individual(Method):
    def train(self, run: Run, watch: Watch) -> Trained:  # noqa: ARG002 - there are no rounds to watch
        personal, failed = self._alone(run, run.federation.tier(1))
        if not personal:
            raise TrainingError(
                f"individual training failed at every site ({failed[0].reason})",
                hint="lower training.learning_rate, or check the feature ranges in the plan",
            )
        return Trained(personal, prior=None, failed=failed)

    def personalise(self, run: Run, trained: Trained, sites: tuple[Site, ...]) -> Served:  # noqa: ARG002
        return self._alone(run, sites)

    @staticmethod
    def _alone(run: Run, sites: tuple[Site, ...]) -> Served:
        if not sites:
            return {}, ()
        federation = run.federation
        start = run.start(federation.settings.prior)
        settings = whole_budget(federation.settings, run.rounds)
        seeds = [derive_seed(run.seed, "fit", 1, site.name) for site in sites]
        tasks = [
            SiteTask(start.mu, start.buffers, site.data.train, site.data.validation, seed)
            for site, seed in zip(sites, seeds, strict=True)
        ]
        fits = run.engine.fit(federation.model, settings, start, tasks, penalised=False)
        answered, failed = sort_out(1, sites, fits)
        return models_of(answered), failed
