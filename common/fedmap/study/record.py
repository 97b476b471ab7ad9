"""What is left of a study to tell: all that status, tables, a release and its report read.

Every runtime makes one: the services from their store, Flower from its run. Values only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedmap.contract.v1.values import EvaluationAnswer, FitAnswer, GlobalRule, StatisticsAnswer
from fedmap.shift.reference import Reference
from fedmap.study.answer_names import GLOBAL, PERSONAL


@dataclass(frozen=True)
class RoundSummary:
    """What a round looked like, over the sites that answered."""

    round: int
    answered: int  # with a weight
    members: int
    penalty: float
    largest_weight: float
    loss: float | None = None  # mean over sites, per row
    validation_loss: float | None = None
    personal_metric: float | None = None  # median over sites, on validation rows
    global_metric: float | None = None


@dataclass(frozen=True)
class PriorMade:
    """How the prior of a round came to be, without its tensors."""

    weights: Mapping[str, float]  # ω̄ by site
    penalty: float  # Σ ω̄ R after the update
    convex_penalty: float = 0.0  # the share of it that is f


def summary_of(
    number: int, members: int, answered: int, step: PriorMade, fits: Sequence[FitAnswer]
) -> RoundSummary:
    """From the prior that a round made and the answers that were let in."""
    return RoundSummary(
        round=number,
        answered=answered,
        members=members,
        penalty=step.penalty,
        largest_weight=max(step.weights.values(), default=0.0),
        loss=_mean([fit.loss for fit in fits if fit.loss is not None]),
        validation_loss=_mean([fit.validation_loss for fit in fits if fit.validation_loss is not None]),
        personal_metric=_median(fits, PERSONAL),
        global_metric=_median(fits, GLOBAL),
    )


@dataclass(frozen=True)
class RoundRecord:
    """One closed round."""

    weights: Mapping[str, float]  # ω̄ by site
    absent: tuple[str, ...]  # those of them that count with an earlier update, sorted
    summary: RoundSummary
    closed_unix_ms: int


@dataclass(frozen=True)
class RefusalRecord:
    """One answer that was not used, or did not come."""

    site: str
    task: str
    code: str
    reason: str
    at_unix_ms: int = 0


@dataclass(frozen=True)
class StudyRecord:
    """One study. What was not measured, or not yet, is empty."""

    regions: Mapping[str, str]  # of the sites, "" where it has none
    input_names: tuple[str, ...] = ()
    statistics: Mapping[str, StatisticsAnswer] = field(default_factory=dict)
    rounds: tuple[RoundRecord, ...] = ()
    rule: GlobalRule | None = None
    reference: Reference | None = None
    evaluations: Mapping[str, EvaluationAnswer] = field(default_factory=dict)
    refusals: tuple[RefusalRecord, ...] = ()


def _mean(found: Sequence[float]) -> float | None:
    return sum(found) / len(found) if found else None


def _median(fits: Iterable[FitAnswer], model: str) -> float | None:
    found = [
        score.value
        for fit in fits
        for score in fit.validation_scores
        if score.model == model and score.value is not None
    ]
    return statistics.median(found) if found else None
