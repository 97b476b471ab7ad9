"""What crosses from a site to the centre and back, as values: the contract's, and the tensors beside them.

Reading is strict: a number that is not finite, or a combination that no sender makes, is a `RejectedError`.
Whether an answer fits the study and its round is the gate's business; bytes are `fedmap.contract.wire`'s and
`tensors`'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.algorithm.pooling.statistics import FeatureStatistics
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.contract.v1.values import (
    Answer,
    EvaluationAnswer,
    FailureAnswer,
    FitAnswer,
    GlobalRule,
    InitialModelAnswer,
    RuleAnswer,
    Score,
    StatisticsAnswer,
)
from fedmap.errors import FedmapError, RejectedError
from fedmap.metrics import METRICS, Metric, MetricResult, SkippedMetric, Threshold
from fedmap.scoring.decision_rules import DecisionRule, RuleTerms
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.answer_names import MODELS, content_name
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import encode_parameters, encode_statistics, encode_theta
from fedmap.study.tensors.rule_files import RuleTensors, decode_rule, encode_rule

MOST_NOTE = 500
"""Characters of a note that travels."""
MOST_ERROR = 1e6
"""Of a score's standard error; no sound one comes near it."""

Content = StatisticsAnswer | InitialModelAnswer | FitAnswer | RuleAnswer | EvaluationAnswer | FailureAnswer
Tensors = FeatureStatistics | Tensor | SiteParameters | RuleTensors
"""Of statistics, a first model, a fit and a rule; the other answers have none."""

C = TypeVar("C", bound=Content)


@dataclass(frozen=True)
class Work:
    """What came of a task, before the exit gate has looked at it."""

    content: Content
    tensors: Tensors | None = None
    model: OwnModel | None = None
    """What the site keeps of this round, exact: what leaves may be clipped, this is not."""
    notes: tuple[str, ...] = ()
    """What was left out already because it needs the rows to know; for the manifest."""
    error: FedmapError | None = None
    """Why the task failed, in full: for the site's own log and status, never sent."""


def content_of(answer: Answer) -> Content | None:
    """What the answer holds; None where it is empty."""
    held: Content | None = getattr(answer, content_name(answer), None)
    return held


def content_as(kind: type[C], answer: Answer) -> C:
    """What the answer holds, where it must be of one kind."""
    held = content_of(answer)
    if not isinstance(held, kind):
        raise RejectedError(f"the answer holds no {kind.__name__}", hint="nothing of it was used")
    return held


def encode_work(network: Network, tensors: Tensors | None) -> bytes:
    """The tensors as the file that travels; empty where there are none."""
    match tensors:
        case FeatureStatistics():
            return encode_statistics(tensors)
        case Tensor():
            return encode_theta(network, tensors)
        case SiteParameters():
            return encode_parameters(network, tensors)
        case RuleTensors():
            return encode_rule(tensors)
        case None:
            return b""


def told_rule(rule: DecisionRule) -> GlobalRule:
    """The rule as it travels."""
    threshold, baseline = rule.threshold, rule.baseline
    return GlobalRule(
        None if threshold is None else threshold.value,
        "" if threshold is None else threshold.note or "",
        () if baseline is None else baseline.grid,
        () if baseline is None else tuple(baseline.cumulative.tolist()),
    )


def rule_of(told: GlobalRule) -> DecisionRule:
    threshold: Threshold | None = None
    if told.threshold is not None:
        _check(0.0 <= told.threshold <= 1.0, "the threshold is no probability")
        threshold = Threshold(told.threshold, told.threshold_note or None)
    grid, cumulative = told.baseline_grid, told.baseline_cumulative
    _check(len(grid) == len(cumulative), "the baseline hazard does not fit its time grid")
    _check(all(map(math.isfinite, (*grid, *cumulative))), "the baseline hazard is not finite")
    _check(not grid or cumulative[0] >= 0, "the baseline hazard is negative")
    _check(list(grid) == sorted(set(grid)), "the time grid does not increase")
    _check(list(cumulative) == sorted(cumulative), "the baseline hazard falls")
    baseline = Baseline(grid, torch.tensor(cumulative, dtype=torch.float64)) if grid else None
    return DecisionRule(threshold, baseline)


def told_score(model: str, result: MetricResult, standard_error: float | None = None) -> Score:
    """`model` is personal, global or fine_tuned."""
    if isinstance(result, SkippedMetric):
        return Score(model, result.name, None, result.reason[:MOST_NOTE])
    return Score(model, result.name, result.value, (result.note or "")[:MOST_NOTE], standard_error)


def result_of(score: Score) -> MetricResult:
    _check(score.model in MODELS, "a score is of none of the models that are scored")
    _check(score.metric in METRICS, "a score is of an unknown metric")
    _check(len(score.note) <= MOST_NOTE, "the note of a score is too long")
    error = score.standard_error
    if error is not None:
        _check(score.value is not None, f"the score {score.metric} has an error without a value")
        _check(0 <= error <= MOST_ERROR, f"the standard error of {score.metric} is out of range")
    if score.value is None:
        return SkippedMetric(score.metric, score.note)
    _check(math.isfinite(score.value), f"the score {score.metric} is not a finite number")
    return Metric(score.metric, score.value, score.note or None)


def told_terms(terms: RuleTerms, reference: ReferenceTerms | None = None) -> tuple[RuleAnswer, RuleTensors]:
    """A site's terms of the rule as they travel."""
    joined = 0 if terms.baseline is None else terms.baseline.joined
    told = RuleAnswer(terms.threshold, terms.validation_rows, joined, reference is not None)
    return told, RuleTensors(terms.baseline, reference)


def check_terms(plan: StudyPlan, told: RuleAnswer, with_tensors: bool) -> None:
    """What a site says of its terms is possible, and of the plan's task."""
    if told.threshold is not None:
        _check(plan.task.kind == "binary", "a threshold belongs to a binary task")
        _check(0.0 <= told.threshold <= 1.0, "the threshold is no probability")
    _check(told.joined_intervals <= len(plan.task.grid), "more intervals are joined than there are")
    _check(
        not with_tensors or plan.task.kind == "cox" or told.reference,
        "baseline terms belong to a survival task",
    )
    _check(with_tensors or not told.reference, "the terms of the reference are missing")


def terms_of(
    plan: StudyPlan, told: RuleAnswer, tensors: bytes | Path | None, what: str = "the terms of the rule"
) -> tuple[RuleTerms, ReferenceTerms | None]:
    """A site's terms, and those of its reference; the tensors' own faults are a `ModelError`."""
    check_terms(plan, told, tensors is not None)
    found = RuleTensors()
    if tensors is not None:
        found = decode_rule(plan, tensors, told.joined_intervals, told.reference, what)
    return RuleTerms(told.threshold, told.validation_rows, found.baseline), found.reference


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RejectedError(
            otherwise, hint="Check that both sides run compatible versions; the answer was not used."
        )
