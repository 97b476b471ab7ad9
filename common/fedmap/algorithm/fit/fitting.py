"""A site's half of a round: θ_k ← argmin (1/N_k)·L(θ; Z_k) + R(θ; μ, ψ), by Adam on mini-batches.

`fit_sites` trains S sites at once in batched tensor operations; `fit_local` is the same for one site. Both
serve T1 (start from θ_k or μ) and T2 (start from μ). A fit depends on its inputs and seed only, not on the
sites beside it. The loop itself is in `batched`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmap.algorithm.fit.batched import BatchedFit, OnEpoch
from fedmap.algorithm.fit.batches import full_batches
from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, GradientSource, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.errors import TrainingError


def fit_local(
    model: Model,
    settings: FedmapSettings,
    prior: Prior,
    task: SiteTask,
    gradient: GradientSource = "autograd_likelihood",
) -> LocalFit:
    """Local MAP estimation at one site; raises `TrainingError` where it fails."""
    (fit,) = fit_sites(model, settings, prior, [task], gradient)
    if isinstance(fit, FailedFit):
        raise TrainingError(
            fit.reason, hint="lower the learning rate, or check the feature ranges in the study plan"
        )
    return fit


def fit_sites(
    model: Model,
    settings: FedmapSettings,
    prior: Prior,
    tasks: Sequence[SiteTask],
    gradient: GradientSource = "closed_form",
    *,
    penalised: bool = True,
    rule: LocalRule | None = None,
    on_epoch: OnEpoch | None = None,
) -> list[LocalFit | FailedFit]:
    """Fit all `tasks` at once, each as if alone. `penalised=False` leaves R out (plain training).

    `rule` takes the steps in another way: consensus rounds and the baselines of the lab use it.
    `on_epoch` hears of each epoch that is done, and of how many there can be.
    """
    usable = [position for position, task in enumerate(tasks) if len(task.train) >= 2]
    if len(usable) < len(tasks):
        others = [tasks[position] for position in usable]
        fitted = fit_sites(
            model, settings, prior, others, gradient, penalised=penalised, rule=rule, on_epoch=on_epoch
        )
        by_position = dict(zip(usable, fitted, strict=True))
        few = FailedFit("fewer than 2 training rows")
        return [by_position.get(position, few) for position in range(len(tasks))]
    if not tasks:
        return []
    rows = np.array([len(task.train) for task in tasks], dtype=np.int64)
    order = np.argsort(-full_batches(rows, settings.training.batch_size), kind="stable")
    penalty = anchored_penalty(model.network.spec, settings.prior, prior.mu, prior.psi) if penalised else None
    fits = BatchedFit(model, settings, penalty, [tasks[i] for i in order], gradient, rule).run(on_epoch)
    by_task: list[LocalFit | FailedFit] = list(fits)
    for position, fit in zip(order, fits, strict=True):
        by_task[position] = fit
    return by_task
