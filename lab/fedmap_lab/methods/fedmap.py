"""FedMAP: local MAP estimation under a learned convex prior; the paper's algorithms for T1, T2 and T3.

F. Zhang, D. Kreuter, C. Esteve-Yagüe, S. Dittmer, and others, M. Roberts. FedMAP: Personalised Federated
Learning for Real Large-Scale Healthcare Systems. Where this departs from it: docs/mathematics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.engine import Engine
from fedmap_lab.federation.sites import Federation
from fedmap_lab.methods.method import Method, Trained, Watch, common_start
from fedmap_lab.methods.rounds import run_rounds


@dataclass(frozen=True)
class FedMap(Method):
    """As the plan says. The ablations change one thing each in `settings`."""

    alpha: float | None = None  # None: the plan's

    penalised: ClassVar[bool] = True
    space: ClassVar[Mapping[str, tuple[float, ...]]] = {"alpha": (0.005, 0.05, 0.15, 0.5)}

    def settings(self, settings: FedmapSettings) -> FedmapSettings:
        if self.alpha is None:
            return settings
        return replace(settings, prior=replace(settings.prior, alpha=self.alpha))

    def hyperparameters(self, settings: FedmapSettings) -> dict[str, float]:
        return {"alpha": self.settings(settings).prior.alpha}

    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        settings = self.settings(federation.settings)
        start = common_start(federation, settings.prior, seed)
        return run_rounds(federation, engine, settings, start, rounds, seed, watch)
