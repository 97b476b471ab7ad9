"""Messages and the values they stand for: bit for bit there and back, and nonsense is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.pooling.baseline import Baseline, BaselineTerms
from fedmap.contract.v1.values import GlobalRule, RuleAnswer, Score
from fedmap.errors import ModelError, RejectedError
from fedmap.metrics import Metric, MetricResult, SkippedMetric, Threshold
from fedmap.scoring.decision_rules import DecisionRule, RuleTerms, pool_rule
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answer_names import layout_digest
from fedmap.study.answers import result_of, rule_of, terms_of, told_rule, told_score, told_terms
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.reading import load_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.rule_files import encode_rule

PLANS = Path(__file__).parents[2] / "lab" / "fedmap_lab" / "plans"


@pytest.fixture
def binary() -> StudyPlan:
    return load_plan(PLANS / "interval.toml")


@pytest.fixture
def cox() -> StudyPlan:
    return load_plan(PLANS / "cprd.toml")


def test_inputs_in_another_order_have_another_digest() -> None:
    assert layout_digest(["a", "b"]) != layout_digest(["b", "a"])
    assert layout_digest(["a,b"]) != layout_digest(["a", "b"])


@pytest.mark.parametrize("threshold", [None, Threshold(1 / 3), Threshold(0.5, "threshold 0.5 kept: why")])
def test_a_rule_comes_back_bit_for_bit(threshold: Threshold | None) -> None:
    baseline = Baseline((1.0, 2.5), torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
    read = rule_of(told_rule(DecisionRule(threshold, baseline)))
    assert read.threshold == threshold
    assert read.baseline is not None
    assert read.baseline.grid == baseline.grid
    assert torch.equal(read.baseline.cumulative, baseline.cumulative)
    assert rule_of(told_rule(DecisionRule(threshold))) == DecisionRule(threshold)


@pytest.mark.parametrize(
    "message",
    [
        GlobalRule(threshold=1.5),
        GlobalRule(threshold=math.nan),
        GlobalRule(baseline_grid=(1.0,)),
        GlobalRule(baseline_grid=(1.0, 2.0), baseline_cumulative=(0.1, math.inf)),
        GlobalRule(baseline_grid=(2.0, 1.0), baseline_cumulative=(0.1, 0.2)),
        GlobalRule(baseline_grid=(1.0, 2.0), baseline_cumulative=(0.2, 0.1)),
        GlobalRule(baseline_grid=(1.0,), baseline_cumulative=(-0.1,)),
    ],
)
def test_an_impossible_rule_is_refused(message: GlobalRule) -> None:
    with pytest.raises(RejectedError):
        rule_of(message)


@pytest.mark.parametrize(
    "result",
    [Metric("auroc", 1 / 3), Metric("brier", 0.1, "fewer times"), SkippedMetric("auprc", "one class")],
)
def test_a_score_comes_back_as_it_was(result: MetricResult) -> None:
    assert result_of(told_score("personal", result)) == result


@pytest.mark.parametrize(
    "score",
    [
        Score(model="secret", metric="auroc", value=0.5),
        Score(model="global", metric="no-metric", value=0.5),
        Score(model="global", metric="auroc", value=math.nan),
        Score(model="global", metric="auroc", note="x" * 501),
        Score(model="global", metric="auroc", standard_error=0.1),
        Score(model="global", metric="auroc", value=0.5, standard_error=-0.1),
        Score(model="global", metric="auroc", value=0.5, standard_error=math.inf),
    ],
)
def test_an_impossible_score_is_refused(score: Score) -> None:
    with pytest.raises(RejectedError):
        result_of(score)


def test_rule_terms_come_back_bit_for_bit(binary: StudyPlan, cox: StudyPlan) -> None:
    told, tensors = told_terms(RuleTerms(1 / 3, 40))
    assert encode_rule(tensors) == b""
    assert terms_of(binary, told, None) == (RuleTerms(1 / 3, 40), None)
    sums = torch.rand(len(cox.task.grid), dtype=torch.float64)
    told, tensors = told_terms(RuleTerms(baseline=BaselineTerms(sums, sums, sums, sums, 3)))
    read = terms_of(cox, told, encode_rule(tensors))[0].baseline
    assert read is not None
    assert read.joined == 3
    assert torch.equal(read.events, sums)


def test_reference_terms_come_back_bit_for_bit_beside_those_of_the_rule(
    binary: StudyPlan, cox: StudyPlan
) -> None:
    for plan in (binary, cox):
        inputs = planned_inputs(plan)
        reference = reference_terms(torch.randn(40, inputs.count), inputs.scaled, 5)
        sums = torch.rand(len(plan.task.grid), dtype=torch.float64)
        baseline = BaselineTerms(sums, sums, sums, sums, 0) if plan.task.kind == "cox" else None
        told, made = told_terms(RuleTerms(baseline=baseline), reference)
        tensors = encode_rule(made)
        terms, read = terms_of(plan, told, tensors)
        assert read is not None
        assert all(torch.equal(getattr(read, name), value) for name, value in vars(reference).items())
        assert (terms.baseline is None) == (baseline is None)
        with pytest.raises((RejectedError, ModelError)):
            terms_of(plan, replace(told, reference=False), tensors)
        with pytest.raises(RejectedError, match="missing"):
            terms_of(plan, told, None)


def test_rule_terms_of_the_wrong_task_or_grid_are_refused(binary: StudyPlan, cox: StudyPlan) -> None:
    with pytest.raises(RejectedError, match="no probability"):
        terms_of(binary, RuleAnswer(threshold=math.nan), None)
    with pytest.raises(RejectedError, match="binary task"):
        terms_of(cox, RuleAnswer(threshold=0.5), None)
    with pytest.raises(RejectedError, match="survival task"):
        terms_of(binary, RuleAnswer(), b"x")
    sums = torch.rand(len(cox.task.grid) + 1, dtype=torch.float64)
    _, tensors = told_terms(RuleTerms(baseline=BaselineTerms(sums, sums, sums, sums, 0)))
    with pytest.raises(ModelError, match="shape"):
        terms_of(cox, RuleAnswer(), encode_rule(tensors))
    sums = -torch.ones(len(cox.task.grid), dtype=torch.float64)
    _, tensors = told_terms(RuleTerms(baseline=BaselineTerms(sums, sums, sums, sums, 0)))
    with pytest.raises(ModelError, match="events is negative"):
        terms_of(cox, RuleAnswer(), encode_rule(tensors))


def test_the_pooled_threshold_is_the_mean_by_validation_rows_in_any_order(binary: StudyPlan) -> None:
    terms = {"b": RuleTerms(0.4, 30), "a": RuleTerms(0.2, 10), "c": RuleTerms(None, 500)}
    backwards = dict(reversed(terms.items()))
    rule = pool_rule(binary, terms)
    assert rule.threshold is not None
    assert rule.threshold.value == pytest.approx(0.35)
    assert pool_rule(binary, backwards) == rule


def test_without_a_single_threshold_the_rule_says_so(binary: StudyPlan) -> None:
    rule = pool_rule(binary, {"a": RuleTerms(None, 50), "b": RuleTerms(0.3, 0)})
    assert rule.threshold is not None
    assert rule.threshold.value == 0.5
    assert rule.threshold.note


def test_a_fixed_threshold_needs_no_rows_at_all() -> None:
    plan = load_plan(PLANS / "uci-heart.toml")
    assert plan.task.threshold is not None
    assert plan.task.threshold.rule == "fixed"
    rule = pool_rule(plan, {"a": RuleTerms(plan.task.threshold.value, 0)})
    assert rule.threshold == Threshold(0.5)


def test_a_survival_study_without_events_has_no_baseline(cox: StudyPlan) -> None:
    zeros = torch.zeros(len(cox.task.grid), dtype=torch.float64)
    assert (
        pool_rule(cox, {"a": RuleTerms(baseline=BaselineTerms(zeros, zeros, zeros, zeros, 0))})
        == DecisionRule()
    )
    assert pool_rule(cox, {"a": RuleTerms()}) == DecisionRule()
