"""The federated loop of the methods that are not FedMAP, and what most of them share.

A `Scheme` is a method's state during training: what each site gets for a round, how it steps (its `rule`),
and what the centre makes of the answers. The loop gives every scheme the same seeds, batches, epochs and
quorum as FedMAP has. Optimiser: Adam with the plan's learning rate for all, as in the FedMAP paper, also
where a method's own paper writes SGD (docs/adr/0027).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import LocalFit, Model, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters, aggregate
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.prior.weights import normalise
from fedmap.algorithm.seeding import derive_seed
from fedmap.errors import TrainingError
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.method import (
    FailedSite,
    Method,
    Progress,
    RoundRecord,
    Run,
    Trained,
    Watch,
    baseline_settings,
    round_record,
    sort_out,
    with_weight,
)

M_co = TypeVar("M_co", bound=Method, covariant=True)


@dataclass(frozen=True)
class Answers:
    """What came back in a round."""

    number: int
    answered: Mapping[str, LocalFit]
    weighed: Mapping[str, LocalFit]  # those that count in the global model


@dataclass(frozen=True)
class Absorbed:
    """What the centre did with a round's answers."""

    weights: Mapping[str, float]  # of each site in the global model, summing to one
    failed: tuple[FailedSite, ...] = ()  # of fits that the scheme ran beside the round's own


class Scheme(Generic[M_co]):
    """One training run of one method. As it stands it is FedAvg."""

    keeps_models = False
    """Whether sites have models of their own."""

    def __init__(
        self, run: Run, method: M_co, start: SiteParameters | None = None, model: Model | None = None
    ) -> None:
        """`start` and `model`: where they are not the common first model and the plan's."""
        self.run, self.method, self.federation = run, method, run.federation
        self.settings = baseline_settings(self.federation.settings)
        self.model = model or self.federation.model
        first = run.start(self.settings.prior)
        self.first = self.shared = start or SiteParameters(first.mu, first.buffers)
        self.seen: frozenset[str] = frozenset()  # sites that gave a fit in some round
        self.own: dict[str, SiteParameters] = {}

    @property
    def rule(self) -> LocalRule | None:
        return self.method.rule

    def task(self, site: Site, seed: int) -> SiteTask:
        """A site's fit of this round: from the global model, unless the scheme says otherwise."""
        data = site.data
        return SiteTask(self.shared.theta, self.shared.buffers, data.train, data.validation, seed)

    def absorb(self, answers: Answers) -> Absorbed:
        """Make the next global model: by default the mean by sample count."""
        weights = by_rows(answers.weighed)
        self.shared = average(self.model, answers.weighed, weights)
        return Absorbed(weights)

    def personal(self) -> Mapping[str, SiteParameters]:
        """The sites' models after a round: the global one, unless the scheme keeps others."""
        return dict(self.own) if self.keeps_models else dict.fromkeys(sorted(self.seen), self.shared)

    @property
    def at(self) -> Prior:
        return Prior(self.shared.theta, self.shared.buffers, torch.zeros(0))

    def prior(self) -> Prior | None:
        """The global model that a T3 site gets."""
        return self.at

    def kept(self) -> Mapping[str, Tensor]:
        """What the centre keeps beside μ, and a T2 site gets with it."""
        return {}

    def trained(self, watch: Watch) -> Trained:
        """Rounds 1 … `rounds`."""
        run, sites = self.run, self.federation.tier(1)
        history: list[RoundRecord] = []
        for number in range(1, run.rounds + 1):
            tasks = [self.task(site, derive_seed(run.seed, "fit", number, site.name)) for site in sites]
            fits = run.engine.fit(self.model, self.settings, self.at, tasks, penalised=False, rule=self.rule)
            answered, failed = sort_out(number, sites, fits)
            weighed = with_weight(self.federation, number, answered, failed)
            self.seen |= answered.keys()
            absorbed = self.absorb(Answers(number, answered, weighed))
            if not bool(torch.isfinite(self.shared.theta).all()):
                raise TrainingError(
                    f"round {number}: the global model left the finite numbers",
                    hint="the method diverges under these settings: tune it, or lower training.learning_rate",
                )
            failed += absorbed.failed
            history.append(round_record(number, answered, absorbed.weights, failed))
            watch(Progress(history[-1], self.prior(), self.personal()))
        failures = tuple(f for record in history for f in record.failed)
        return Trained(self.personal(), self.prior(), tuple(history), failures, kept=self.kept())


class SchemeMethod(Method):
    """A method whose training runs are schemes."""

    scheme: ClassVar[type[Scheme[Any]]] = Scheme

    def train(self, run: Run, watch: Watch) -> Trained:
        return self.scheme(run, self).trained(watch)


@dataclass(frozen=True)
class FedAvg(SchemeMethod):
    """FedAvg: train from the global model, average by sample count, one model for all.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep
    Networks from Decentralized Data. AISTATS 2017, Algorithm 1 (all sites take part in every round).
    """


def by_rows(fits: Mapping[str, LocalFit]) -> Mapping[str, float]:
    """Weights by sample count, to the same bits as the rule `sample_count` gives."""
    names = sorted(fits)
    logs = [fit.log_omega for name in names if (fit := fits[name]).log_omega is not None]
    return dict(zip(names, (float(share) for share in normalise(logs)), strict=True))


def equally(fits: Mapping[str, LocalFit]) -> Mapping[str, float]:
    return dict.fromkeys(sorted(fits), 1.0 / len(fits))


def average(model: Model, fits: Mapping[str, LocalFit], weights: Mapping[str, float]) -> SiteParameters:
    """Σ w_k θ_k in float64 with pooled batch-norm statistics."""
    found = {name: SiteParameters(fit.theta, fit.buffers) for name, fit in fits.items()}
    return SiteParameters(*aggregate(model.network.spec, weights, found.__getitem__))


def mean_of(vectors: Mapping[str, Tensor]) -> Tensor:
    """The plain mean of the sites' vectors, in float64 and sorted order."""
    return torch.stack([vectors[name].double() for name in sorted(vectors)]).mean(0)
