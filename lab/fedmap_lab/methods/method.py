"""What every method offers: train the T1 sites, then serve a T2 site. T3 sites get its global model.

All methods share the federation's splits, the initial model and the budget (rounds × epochs), so that a
difference in the results is a difference between the methods.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior, draw_initial_site, initial_parameters, initial_prior
from fedmap.algorithm.settings import AggregationSettings, FedmapSettings, PriorSettings
from fedmap.errors import TrainingError
from fedmap.study.engine import Engine, Fits
from fedmap.study.personalisation import fine_tune_settings, fine_tune_task
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.sites import Federation, Site


@dataclass(frozen=True)
class FailedSite:
    """A site whose fit failed in a round; the round went on without it."""

    round: int  # 0: a T2 site's only fit
    site: str
    reason: str


@dataclass(frozen=True)
class RoundRecord:
    """What a round looked like, averaged over the sites that answered."""

    round: int
    loss: float  # L per row on training rows
    penalty: float  # R
    convex_penalty: float  # the part of R that is f
    validation_loss: float  # L per row on validation rows; NaN where no site could judge
    largest_weight: float  # the largest ω̄
    failed: tuple[FailedSite, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # ω̄ by site


@dataclass(frozen=True)
class Progress:
    """The state after a round, for whoever watches."""

    record: RoundRecord
    prior: Prior | None  # None: no global model that predicts by itself
    personal: Mapping[str, SiteParameters]


Watch = Callable[[Progress], None]
Served = tuple[Mapping[str, SiteParameters], tuple[FailedSite, ...]]
"""Models by site, and the sites for which there is none."""


@dataclass(frozen=True)
class Trained:
    """The outcome at the T1 sites."""

    personal: Mapping[str, SiteParameters]
    prior: Prior | None  # None: the method has no global model
    history: tuple[RoundRecord, ...] = ()
    failed: tuple[FailedSite, ...] = field(default=())
    model: Model | None = None
    """What the parameters belong to, where it is not the plan's own model."""
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    """What the centre keeps beside μ, by name, and a T2 site gets with it."""


@dataclass(frozen=True)
class Run:
    """What every method is run with: whose rows, on what engine, for how long."""

    federation: Federation
    engine: Engine
    rounds: int
    seed: int

    def start(self, settings: PriorSettings) -> Prior:
        """The same first model for every method: that of a site drawn at random."""
        network = self.federation.model.network
        names = tuple(site.name for site in self.federation.tier(1))
        theta = initial_parameters(network, self.seed, draw_initial_site(names, self.seed))
        return initial_prior(network, settings, theta)


class Method(ABC):
    """A method with its hyperparameters, which are the fields of its (frozen) dataclass."""

    space: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    """The values that tuning may give to the method's own hyperparameters."""
    penalised: ClassVar[bool] = False
    """Whether fits are held by a prior."""

    def refusal(self, plan: StudyPlan, settings: FedmapSettings) -> str | None:  # noqa: ARG002
        """Why the method is not run under this plan; None where it is."""
        return None

    def hyperparameters(self, settings: FedmapSettings) -> dict[str, float]:  # noqa: ARG002
        """The method's own hyperparameters that can be tuned, as it runs them under these settings."""
        return {name: getattr(self, name) for name in self.space}

    @abstractmethod
    def train(self, run: Run, watch: Watch) -> Trained:
        """Train all T1 sites."""

    @property
    def rule(self) -> LocalRule | None:
        """How a T1 site steps; None: plain Adam."""
        return None

    def settings(self, settings: FedmapSettings) -> FedmapSettings:
        """What is run, from what the plan says: its training without a prior, unless the method has one."""
        return baseline_settings(settings)

    def personal_step(self, trained: Trained) -> tuple[LocalRule | None, Tensor | None]:  # noqa: ARG002
        """By what step a T2 site fine-tunes, and what it keeps beside θ; by default everybody's."""
        return None, None

    def personalise(self, run: Run, trained: Trained, sites: tuple[Site, ...]) -> Served:
        """Models for T2 sites, which never talk to the federation: the global model, fine-tuned."""
        assert trained.prior is not None
        rule, beside = self.personal_step(trained)
        settings = fine_tune_settings(self.settings(run.federation.settings))
        tasks = [replace(fine_tune_task(trained.prior, site.data, run.seed), beside=beside) for site in sites]
        fits = run.engine.fit(run.federation.model, settings, trained.prior, tasks, self.penalised, rule)
        answered, failed = sort_out(0, sites, fits)
        return models_of(answered), failed


def baseline_settings(settings: FedmapSettings) -> FedmapSettings:
    """The plan's training without a prior: start at the global model, weigh by sample count."""
    return FedmapSettings(
        prior=replace(settings.prior, convex=False),
        training=replace(settings.training, start="global", consensus_share=0),
        aggregation=AggregationSettings(weighting="sample_count", psi_steps=0),
    )


def whole_budget(settings: FedmapSettings, rounds: int) -> FedmapSettings:
    """One fit with the epochs of all rounds."""
    epochs = rounds * settings.training.epochs
    return replace(settings, training=replace(settings.training, epochs=epochs))


def models_of(fits: Mapping[str, LocalFit]) -> dict[str, SiteParameters]:
    return {name: SiteParameters(fit.theta, fit.buffers) for name, fit in fits.items()}


def sort_out(
    number: int, sites: Sequence[Site], fits: Fits
) -> tuple[Mapping[str, LocalFit], tuple[FailedSite, ...]]:
    """Fits by site, and the failures that the round goes on without."""
    pairs = list(zip(sites, fits, strict=True))
    answered = {site.name: fit for site, fit in pairs if isinstance(fit, LocalFit)}
    failed = tuple(FailedSite(number, s.name, f.reason) for s, f in pairs if isinstance(f, FailedFit))
    return answered, failed


def with_weight(
    federation: Federation,
    number: int,
    answered: Mapping[str, LocalFit],
    failed: tuple[FailedSite, ...],
) -> Mapping[str, LocalFit]:
    """The fits that count in the global model (not a survival site without events); at least a quorum."""
    weighed = {name: fit for name, fit in answered.items() if fit.log_omega is not None}
    quorum = federation.plan.rounds.quorum
    if len(weighed) < quorum:
        reasons = "; ".join(f"{failure.site}: {failure.reason}" for failure in failed[:3])
        raise TrainingError(
            f"round {number}: {len(weighed)} of {len(federation.tier(1))} sites gave an update with a "
            f"weight, the plan's quorum is {quorum} ({reasons or 'the others have no events'})",
            hint="lower training.learning_rate, check the feature ranges, or lower rounds.quorum",
        )
    return weighed


def round_record(
    number: int,
    answered: Mapping[str, LocalFit],
    weights: Mapping[str, float],
    failed: tuple[FailedSite, ...],
    penalties: tuple[float, float] = (0.0, 0.0),
) -> RoundRecord:
    """What a round looked like; `penalties` are R and the part of it that is f."""
    fits = list(answered.values())
    judged = [fit.validation_loss for fit in fits if fit.validation_loss is not None]
    return RoundRecord(
        round=number,
        loss=sum(fit.loss / fit.rows for fit in fits) / len(fits),
        penalty=penalties[0],
        convex_penalty=penalties[1],
        validation_loss=sum(judged) / len(judged) if judged else math.nan,
        largest_weight=max(weights.values()),
        failed=failed,
        weights=weights,
    )
