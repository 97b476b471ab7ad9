"""What every method offers: train the T1 sites, then serve a T2 site. T3 sites get its global model.

All methods share the federation's splits, the initial model and the budget (rounds × epochs), so that a
difference in the results is a difference between the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.algorithm.aggregation import SiteParameters
from common.algorithm.prior import Prior, draw_initial_site, initial_parameters, initial_prior
from common.algorithm.settings import PriorSettings
from lab.engines import Engine
from lab.federation import Federation, Site


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


@dataclass(frozen=True)
class Progress:
    """The state after a round, for whoever watches."""

    record: RoundRecord
    prior: Prior
    personal: Mapping[str, SiteParameters]


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Trained:
    """The outcome at the T1 sites."""

    personal: Mapping[str, SiteParameters]
    prior: Prior | None  # None: the method has no global model
    history: tuple[RoundRecord, ...] = ()
    failed: tuple[FailedSite, ...] = field(default=())


class Method(Protocol):
    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        """Train all T1 sites."""

    def personalise(
        self,
        federation: Federation,
        engine: Engine,
        trained: Trained,
        sites: tuple[Site, ...],
        rounds: int,
        seed: int,
    ) -> tuple[Mapping[str, SiteParameters], tuple[FailedSite, ...]]:
        """Models for T2 sites, which never talk to the federation."""


def common_start(federation: Federation, settings: PriorSettings, seed: int) -> Prior:
    """The same first model for every method: that of a site drawn at random."""
    names = tuple(site.name for site in federation.tier(1))
    theta = initial_parameters(federation.model.network, seed, draw_initial_site(names, seed))
    return initial_prior(federation.model.network, settings, theta)
