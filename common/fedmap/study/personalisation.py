"""T2: a site's own model from a released prior, with no communication. Starts at μ, runs under R(·; μ, ψ).

The one place that says what fine-tuning is: the simulator's T2 sites, a T1 site's last evaluation and
`fedmap-site personalise` all come here.
"""

from __future__ import annotations

from dataclasses import replace

from fedmap.algorithm.fit.batched import OnEpoch
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed
from fedmap.algorithm.settings import FedmapSettings
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.study.engine import LoopEngine
from fedmap.study.plan.study_plan import StudyPlan


def fine_tune_settings(settings: FedmapSettings) -> FedmapSettings:
    """From μ, for as many epochs as the plan gives to a fit that is never repeated."""
    training = replace(settings.training, start="global", epochs=settings.training.fine_tune_epochs)
    return replace(settings, training=training)


def fine_tune_task(prior: Prior, data: SiteDataset, seed: int) -> SiteTask:
    """What a site brings: its scaled rows, and μ to start from."""
    own_seed = derive_seed(seed, "fine-tune", data.site)
    return SiteTask(prior.mu, prior.buffers, data.train, data.validation, own_seed)


def fine_tune(
    plan: StudyPlan,
    model: Model,
    prior: Prior,
    data: SiteDataset,
    seed: int,
    on_epoch: OnEpoch | None = None,
) -> LocalFit | FailedFit:
    """The fit of one site. `data` is scaled."""
    settings = fine_tune_settings(plan.settings)
    task = fine_tune_task(prior, data, seed)
    (fit,) = LoopEngine(on_epoch).fit(model, settings, prior, [task])
    return fit
