"""The federated loop of the methods that are not FedMAP, and what most of them share.

A `Scheme` is a method's state during training: what each site gets for a round, how it steps (its `rule`),
and what the centre makes of the answers. The loop gives every scheme the same seeds, batches, epochs and
quorum as FedMAP has. Optimiser: Adam with the plan's learning rate for all, as in the FedMAP paper, also
where a method's own paper writes SGD (docs/adr/0027).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import LocalFit, Model, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters, aggregate
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.prior.weights import normalise
from fedmap.algorithm.seeding import derive_seed
from fedmap.errors import TrainingError
from fedmap.study.engine import Engine
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.method import (
    FailedSite,
    Method,
    Progress,
    RoundRecord,
    Trained,
    Watch,
    baseline_settings,
    common_start,
    sort_out,
)
from fedmap_lab.methods.rounds import round_record, with_weight


@dataclass(frozen=True)
class Beginning:
    """What a training run begins with."""

    federation: Federation
    engine: Engine
    seed: int
    start: SiteParameters  # the common first model


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


class Scheme:
    """One training run of one method. As it stands it is FedAvg."""

    rule: LocalRule | None = None

    def __init__(self, beginning: Beginning, model: Model | None = None) -> None:
        """`model`: where it is not the plan's."""
        self.federation = beginning.federation
        self.settings = baseline_settings(self.federation.settings)
        self.model = model or self.federation.model
        self.shared = beginning.start
        self.seen: frozenset[str] = frozenset()  # sites that gave a fit in some round
        self.own: dict[str, SiteParameters] | None = None  # the sites' models, where a method keeps any

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
        return dict.fromkeys(sorted(self.seen), self.shared) if self.own is None else dict(self.own)

    def prior(self) -> Prior | None:
        """The global model that a T3 site gets."""
        return Prior(self.shared.theta, self.shared.buffers, torch.zeros(0))

    def kept(self) -> Mapping[str, Tensor]:
        """What the centre keeps beside μ, and a T2 site gets with it."""
        return {}


class SchemeMethod(Method):
    """A method whose training runs are schemes."""

    def scheme(self, beginning: Beginning) -> Scheme:
        return Scheme(beginning)

    def train(self, federation: Federation, engine: Engine, rounds: int, seed: int, watch: Watch) -> Trained:
        first = common_start(federation, baseline_settings(federation.settings).prior, seed)
        beginning = Beginning(federation, engine, seed, SiteParameters(first.mu, first.buffers))
        return run_scheme(self.scheme(beginning), beginning, rounds, watch)


def run_scheme(scheme: Scheme, beginning: Beginning, rounds: int, watch: Watch) -> Trained:
    """Rounds 1 … `rounds`."""
    federation, engine, seed = beginning.federation, beginning.engine, beginning.seed
    sites = federation.tier(1)
    history: list[RoundRecord] = []
    for number in range(1, rounds + 1):
        tasks = [scheme.task(site, derive_seed(seed, "fit", number, site.name)) for site in sites]
        at = Prior(scheme.shared.theta, scheme.shared.buffers, torch.zeros(0))
        fits = engine.fit(scheme.model, scheme.settings, at, tasks, penalised=False, rule=scheme.rule)
        answered, failed = sort_out(number, sites, fits)
        weighed = with_weight(federation, number, answered, failed)
        scheme.seen |= answered.keys()
        absorbed = scheme.absorb(Answers(number, answered, weighed))
        if not bool(torch.isfinite(scheme.shared.theta).all()):
            raise TrainingError(
                f"round {number}: the global model left the finite numbers",
                hint="the method diverges under these settings: tune it, or lower training.learning_rate",
            )
        failed += absorbed.failed
        history.append(round_record(number, answered, absorbed.weights, failed))
        watch(Progress(history[-1], scheme.prior(), scheme.personal()))
    failures = tuple(f for record in history for f in record.failed)
    return Trained(scheme.personal(), scheme.prior(), tuple(history), failures, kept=scheme.kept())


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
