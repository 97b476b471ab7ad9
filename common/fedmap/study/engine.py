"""The sites' half of a round: one call that fits sites under the prior of a round, whoever runs the study.

`LoopEngine` fits one site after another; an engine that fits many at once takes its place in the lab. What
holds a fit, where it starts and what is kept of it is `algorithm.fit.round`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.batched import OnEpoch
from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.seeding import derive_seed
from fedmap.algorithm.settings import FedmapSettings

Fits = list[LocalFit | FailedFit]


class Engine(Protocol):
    """Fits every task as if alone; `penalised=False` leaves the prior out, `rule` takes other steps."""

    def fit(
        self,
        model: Model,
        settings: FedmapSettings,
        prior: Prior,
        tasks: Sequence[SiteTask],
        penalised: bool = True,
        rule: LocalRule | None = None,
    ) -> Fits: ...


class LoopEngine:
    """One site after another. `on_epoch` hears of each epoch of the fit under way."""

    def __init__(self, on_epoch: OnEpoch | None = None) -> None:
        self._on_epoch = on_epoch

    def fit(
        self,
        model: Model,
        settings: FedmapSettings,
        prior: Prior,
        tasks: Sequence[SiteTask],
        penalised: bool = True,
        rule: LocalRule | None = None,
    ) -> Fits:
        fits: Fits = []
        for task in tasks:
            fits += fit_sites(
                model,
                settings,
                prior,
                [task],
                "autograd_likelihood",
                penalised=penalised,
                rule=rule,
                on_epoch=self._on_epoch,
            )
        return fits


@dataclass(frozen=True)
class RoundSite:
    """What one site brings to a round: scaled rows, and what it kept of the rounds before."""

    name: str
    train: Examples
    validation: Examples
    own: OwnModel | None


@dataclass(frozen=True)
class Fitted:
    """A site's fit of a round, and what it keeps of it."""

    fit: LocalFit
    own: OwnModel


def fit_round(
    engine: Engine,
    model: Model,
    this: LocalRound,
    prior: Prior,
    seed: int,
    sites: Sequence[RoundSite],
) -> Mapping[str, Fitted | FailedFit]:
    """The fits of a round by site; in consensus rounds without the prior."""
    tasks = [
        this.task(
            prior, site.own, site.train, site.validation, derive_seed(seed, "fit", this.number, site.name)
        )
        for site in sites
    ]
    fits = engine.fit(model, this.settings, prior, tasks, not this.is_consensus, this.rule)
    return {
        site.name: fit if isinstance(fit, FailedFit) else Fitted(fit, this.kept(prior, site.own, fit))
        for site, fit in zip(sites, fits, strict=True)
    }
