"""Pooled training, the oracle: all T1 rows in one place, which no federation is allowed to do.

The plan's model on the rows of all T1 sites together, from the common first model, with the federation's
whole budget of epochs and early stopping on all validation rows together. A bound to compare with, not a
method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.values import FailedFit, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed
from fedmap.errors import TrainingError
from fedmap_lab.methods.method import Method, Run, Trained, Watch, whole_budget


@dataclass(frozen=True)
class Pooled(Method):
    def train(self, run: Run, watch: Watch) -> Trained:  # noqa: ARG002 - there are no rounds to watch
        settings = self.settings(run.federation.settings)
        start = run.start(settings.prior)
        sites = run.federation.tier(1)
        task = SiteTask(
            start.mu,
            start.buffers,
            together([site.data.train for site in sites]),
            together([site.data.validation for site in sites]),
            derive_seed(run.seed, "fit", 1, "pooled"),
        )
        settings = whole_budget(settings, run.rounds)
        (fit,) = run.engine.fit(run.federation.model, settings, start, [task], penalised=False)
        if isinstance(fit, FailedFit):
            raise TrainingError(
                f"pooled training failed ({fit.reason})",
                hint="lower training.learning_rate, or check the feature ranges in the plan",
            )
        shared = SiteParameters(fit.theta, fit.buffers)
        return Trained(
            dict.fromkeys((site.name for site in sites), shared),
            Prior(fit.theta, fit.buffers, torch.zeros(0)),
        )


def together(parts: Sequence[Examples]) -> Examples:
    """The rows of several sites as if they were one."""
    events = [part.event for part in parts if part.event is not None]
    return Examples(
        torch.cat([part.features for part in parts]),
        torch.cat([part.target for part in parts]),
        torch.cat(events) if events else None,
    )
