"""Answers between the wire and the algorithm: messages ↔ the values they stand for.

Reading is strict: a number that is not finite, or a combination that no sender makes, is a `RejectedError`.
Whether an answer fits the study and its round is the gate's business.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.errors import RejectedError
from fedmap.metrics import METRICS, Metric, MetricResult, SkippedMetric, Threshold
from fedmap.scoring.decision_rules import DecisionRule, RuleTerms
from fedmap.shift.told.terms import ReferenceTerms
from fedmap.study.answer_names import MODELS
from fedmap.study.plan import StudyPlan
from fedmap.study.tensors.rule_files import RuleTensors, decode_rule, encode_rule

MOST_NOTE = 500
"""Characters of a note that travels."""
MOST_ERROR = 1e6
"""Of a score's standard error; no sound one comes near it."""


def rule_message(rule: DecisionRule) -> pb.GlobalRule:
    message = pb.GlobalRule()
    if rule.threshold is not None:
        message.threshold = rule.threshold.value
        message.threshold_note = rule.threshold.note or ""
    if rule.baseline is not None:
        message.baseline_grid.extend(rule.baseline.grid)
        message.baseline_cumulative.extend(rule.baseline.cumulative.tolist())
    return message


def rule_of(message: pb.GlobalRule) -> DecisionRule:
    threshold: Threshold | None = None
    if message.HasField("threshold"):
        _check(0.0 <= message.threshold <= 1.0, "the threshold is no probability")
        threshold = Threshold(message.threshold, message.threshold_note or None)
    grid, cumulative = tuple(message.baseline_grid), tuple(message.baseline_cumulative)
    _check(len(grid) == len(cumulative), "the baseline hazard does not fit its time grid")
    _check(all(map(math.isfinite, (*grid, *cumulative))), "the baseline hazard is not finite")
    _check(not grid or cumulative[0] >= 0, "the baseline hazard is negative")
    _check(list(grid) == sorted(set(grid)), "the time grid does not increase")
    _check(list(cumulative) == sorted(cumulative), "the baseline hazard falls")
    baseline = Baseline(grid, torch.tensor(cumulative, dtype=torch.float64)) if grid else None
    return DecisionRule(threshold, baseline)


def score_message(model: str, result: MetricResult, standard_error: float | None = None) -> pb.Score:
    """`model` is personal, global or fine_tuned."""
    if isinstance(result, SkippedMetric):
        return pb.Score(model=model, metric=result.name, note=result.reason[:MOST_NOTE])
    note = (result.note or "")[:MOST_NOTE]
    score = pb.Score(model=model, metric=result.name, value=result.value, note=note)
    if standard_error is not None:
        score.standard_error = standard_error
    return score


def result_of(score: pb.Score) -> MetricResult:
    _check(score.model in MODELS, "a score is of none of the models that are scored")
    _check(score.metric in METRICS, "a score is of an unknown metric")
    _check(len(score.note) <= MOST_NOTE, "the note of a score is too long")
    if score.HasField("standard_error"):
        _check(score.HasField("value"), f"the score {score.metric} has an error without a value")
        _check(
            0 <= score.standard_error <= MOST_ERROR, f"the standard error of {score.metric} is out of range"
        )
    if not score.HasField("value"):
        return SkippedMetric(score.metric, score.note)
    _check(math.isfinite(score.value), f"the score {score.metric} is not a finite number")
    return Metric(score.metric, score.value, score.note or None)


def rule_answer(terms: RuleTerms, reference: ReferenceTerms | None = None) -> tuple[pb.RuleAnswer, bytes]:
    """The message and its tensors (empty where there are none)."""
    message = pb.RuleAnswer(validation_rows=terms.validation_rows, reference=reference is not None)
    if terms.threshold is not None:
        message.threshold = terms.threshold
    if terms.baseline is not None:
        message.joined_intervals = terms.baseline.joined
    return message, encode_rule(RuleTensors(terms.baseline, reference))


def rule_terms_of(plan: StudyPlan, message: pb.RuleAnswer, tensors: bytes | Path | None) -> RuleTerms:
    """A site's terms of the rule, without those of the reference."""
    return rule_content_of(plan, message, tensors)[0]


def rule_content_of(
    plan: StudyPlan, message: pb.RuleAnswer, tensors: bytes | Path | None
) -> tuple[RuleTerms, ReferenceTerms | None]:
    """A site's terms; the tensors' own faults are a `ModelError`."""
    threshold = message.threshold if message.HasField("threshold") else None
    if threshold is not None:
        _check(plan.task.kind == "binary", "a threshold belongs to a binary task")
        _check(0.0 <= threshold <= 1.0, "the threshold is no probability")
    _check(message.joined_intervals <= len(plan.task.grid), "more intervals are joined than there are")
    _check(
        tensors is None or plan.task.kind == "cox" or message.reference,
        "baseline terms belong to a survival task",
    )
    _check(tensors is not None or not message.reference, "the terms of the reference are missing")
    found = RuleTensors()
    if tensors is not None:
        found = decode_rule(plan, tensors, message.joined_intervals, message.reference)
    return RuleTerms(threshold, message.validation_rows, found.baseline), found.reference


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RejectedError(
            otherwise, hint="Check that both sides run compatible versions; the answer was not used."
        )
