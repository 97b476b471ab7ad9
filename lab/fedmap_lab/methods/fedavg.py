"""FedAvg: train from the global model, average by sample count, one model for all.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017, Algorithm 1 (all sites take part in every round).

T2 and T3 by the convention for methods without a prior: T2 fine-tunes the global model, T3 uses it as it
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.study.engine import Engine
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.method import Method, Progress, Served, Trained, Watch, common_start
from fedmap_lab.methods.rounds import fine_tune, run_rounds
from fedmap_lab.methods.scheme import baseline_settings


@dataclass(frozen=True)
class FedAvg(Method):
    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        settings = baseline_settings(federation.settings)
        start = common_start(federation, settings.prior, seed)

        def watch_shared(progress: Progress) -> None:
            watch(replace(progress, personal=_one_for_all(progress.prior, progress.personal)))

        trained = run_rounds(federation, engine, settings, start, rounds, seed, watch_shared, penalised=False)
        return replace(trained, personal=_one_for_all(trained.prior, trained.personal))

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


def _one_for_all(prior: Prior | None, sites: Iterable[str]) -> Mapping[str, SiteParameters]:
    """What a site uses is the global model, not its own last fit, which only went into the average."""
    assert prior is not None
    return dict.fromkeys(sites, SiteParameters(prior.mu, prior.buffers))
