"""The centre's half of every step: answers in, the scaler, a prior, the global rule out.

Pooled statistics, the first prior, the next prior, the decision rule with the reference of the shift check.
Every driver of a study comes here. Values in, values out: the mathematics is `fedmap.algorithm`, files and
messages are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.pooling.statistics import FeatureStatistics, Scaler, make_scaler, pool_statistics
from fedmap.algorithm.prior.aggregation import Load, PriorStep, next_prior
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.errors import TrainingError
from fedmap.process.log import get_logger
from fedmap.scoring.decision_rules import DecisionRule, RuleTerms, pool_rule
from fedmap.shift.pooling import LEAST_SITES, pool_reference
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.models import model_of
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms

_Update = TypeVar("_Update")


@dataclass(frozen=True)
class Pooled:
    """The scaler of a study, and who is left out of it."""

    scaler: Scaler
    rows: int  # of the sites that were pooled
    excluded: Mapping[str, str] = field(default_factory=dict)  # site → reason


@dataclass(frozen=True)
class Ruled:
    """What turns outputs of the last model into decisions, and what its inputs are compared with."""

    rule: DecisionRule
    reference: Reference | None


@dataclass(frozen=True)
class CentreStep:
    """The centre of one study."""

    plan: StudyPlan
    model: Model
    settings: FedmapSettings
    rounds: int

    @classmethod
    def of(cls, terms: StudyTerms) -> Self:
        return cls(terms.plan, model_of(terms.plan), terms.plan.settings, terms.rounds)

    def pool(self, layouts: Mapping[str, str], load: Callable[[str], FeatureStatistics]) -> Pooled:
        """One scaler from the statistics of the sites with the usual inputs; `layouts` are their digests."""
        usual = usual_sites(layouts)
        pooled = pool_statistics({site: load(site) for site in usual})
        excluded = {site: unusual_inputs(len(usual)) for site in layouts if site not in usual}
        return Pooled(make_scaler(pooled, planned_inputs(self.plan).scaled), pooled.rows, excluded)

    def first(self, theta: Tensor, scaler: Scaler) -> PriorFile:
        """γ⁰ from the first model of the site that was drawn."""
        return PriorFile(initial_prior(self.model.network, self.settings.prior, theta), scaler)

    def counted(
        self, number: int, answered: Mapping[str, _Update], earlier: Mapping[str, _Update]
    ) -> Mapping[str, _Update]:
        """What makes the next prior. In a consensus round who is missing counts with what it sent last."""
        if not self.carries_over(number):
            return answered
        return {**earlier, **answered}

    def carries_over(self, number: int) -> bool:
        """Whether sites that do not answer this round count all the same."""
        return self.settings.is_consensus(number, self.rounds)

    def next(self, number: int, before: Prior, log_omega: Mapping[str, float], load: Load) -> PriorStep:
        """γ' from the updates of a round; `TrainingError` for a prior that no round can start from."""
        step = next_prior(
            self.model.network.spec,
            self.settings.prior,
            self.settings.aggregation_in(number, self.rounds),
            before,
            log_omega,
            load,
        )
        check_step(step)
        return step

    def rule(
        self,
        terms: Mapping[str, RuleTerms],
        references: Mapping[str, ReferenceTerms],
        input_names: tuple[str, ...],
    ) -> Ruled:
        """The rule of the last global model. Without names of its inputs there is no reference."""
        return Ruled(pool_rule(self.plan, terms), reference_of(references, input_names))


def usual_sites(layouts: Mapping[str, str]) -> tuple[str, ...]:
    """Of sites and the digests of their inputs, those with the most common ones, sorted.

    Of equally many, those with the smallest name among them.
    """
    groups: dict[str, list[str]] = {}
    for site in sorted(layouts):
        groups.setdefault(layouts[site], []).append(site)
    if not groups:
        return ()
    largest = max(groups.values(), key=len)  # the first of them
    return tuple(largest)


def unusual_inputs(usual: int) -> str:
    """Why a site is left out of a study whose other inputs are the same at `usual` sites."""
    return f"the model's inputs differ from those of {usual} other site(s): other feature columns"


def check_step(step: PriorStep) -> None:
    """`TrainingError` for a prior that no round can start from."""
    if not (math.isfinite(step.penalty) and math.isfinite(step.convex_penalty)):
        raise TrainingError(
            "the penalty of the next prior is not a finite number",
            hint="`status` has the norm of each update: revoke a site that is far from the others; with a "
            "convex prior, lower aggregation.psi_learning_rate in the study plan",
        )
    buffers = step.prior.buffers
    if not bool(torch.isfinite(buffers.mean).all() and torch.isfinite(buffers.variance).all()):
        raise TrainingError(
            "the pooled batch-norm statistics are not finite",
            hint="`status` has the norm of each update: revoke a site that is far from the others",
        )


def reference_of(references: Mapping[str, ReferenceTerms], names: tuple[str, ...]) -> Reference | None:
    """The pooled reference; None where there is too little to pool, or inputs have no names."""
    told = {site: terms for site, terms in references.items() if terms.rows.item() > 0}
    if len(told) < LEAST_SITES or not names:
        return None
    try:
        return pool_reference(told, names)
    except (TrainingError, ValidationError) as error:
        # The model is as good without it: its bundle then says that there is no shift check.
        get_logger().warning("reference_not_pooled", exc_info=error)
        return None
