"""Scoring a model on a site's rows under the plan: what agent and lab both report.

A decision rule (threshold, or baseline hazard) is fixed on training and validation rows first and only then
applied to test rows. Nothing here sees names or identifiers. How the terms of many sites become one rule is
in `decision_rules`, which the centre can use without any of the libraries that score.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.pooling.baseline import baseline_terms, pool_baseline
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import TrainingError
from fedmap.metrics import MetricResult, SkippedMetric, metric_names
from fedmap.metrics.classification import binary_scores, multiclass_scores
from fedmap.metrics.inputs import Bools
from fedmap.metrics.scores import Scores
from fedmap.metrics.survival import survival_scores
from fedmap.metrics.thresholds import choose_threshold
from fedmap.scoring.decision_rules import DecisionRule, RuleTerms
from fedmap.study.plan.study_plan import StudyPlan

_ROUNDED_RULES = ("youden", "sensitivity")  # their threshold is the probability of one validation row
_DECIMALS = 2


def outputs(model: Model, parameters: SiteParameters, features: Tensor) -> Tensor:
    """(rows, inputs) → (rows, outputs)."""
    return model.network.predict_rows(parameters.theta, parameters.buffers, features)


def probabilities(model: Model, raw: Tensor) -> Tensor:
    """Class probabilities: (rows,) of the positive class for a binary task, else (rows, classes)."""
    if model.likelihood == "bernoulli":
        return torch.sigmoid(raw[:, 0].double())
    by_class = torch.softmax(raw.double(), -1)
    return by_class[:, 1] if by_class.shape[1] == 2 else by_class


def local_rule(
    plan: StudyPlan, model: Model, parameters: SiteParameters, train: Examples, validation: Examples
) -> DecisionRule:
    """The rule a site makes for its own model: threshold on validation rows, baseline on training rows."""
    task = plan.task
    if task.kind == "cox":
        assert train.event is not None
        if not bool(train.event.any()):
            return DecisionRule()
        eta = outputs(model, parameters, train.features)[:, 0]
        terms = baseline_terms(eta, train.target, train.event, task.grid, floor=0)
        if not bool(terms.events.any()):
            return DecisionRule()
        return DecisionRule(baseline=pool_baseline({"": terms}, task.grid))
    if task.kind == "multiclass" or task.threshold is None:
        return DecisionRule()
    scores = (
        probabilities(model, outputs(model, parameters, validation.features)).numpy()
        if len(validation)
        else np.zeros(0)
    )
    return DecisionRule(
        choose_threshold(task.threshold.rule, task.threshold.value, scores, validation.target.numpy())
    )


def rule_terms(
    plan: StudyPlan,
    model: Model,
    shared: SiteParameters,
    train: Examples,
    validation: Examples,
    min_cell: int | None = None,
) -> RuleTerms:
    """What a site contributes to the global model's rule; `min_cell` is the plan's unless it is stricter.

    A threshold that is one row's probability is rounded (docs/adr/0012).
    """
    task = plan.task
    if task.kind == "cox":
        assert train.event is not None
        eta = outputs(model, shared, train.features)[:, 0]
        floor = max(plan.limits.min_cell, min_cell or 0)
        return RuleTerms(baseline=baseline_terms(eta, train.target, train.event, task.grid, floor))
    threshold = local_rule(plan, model, shared, train, validation).threshold
    if threshold is None or threshold.note is not None:
        return RuleTerms(validation_rows=len(validation))
    value = threshold.value
    if task.threshold is not None and task.threshold.rule in _ROUNDED_RULES:
        value = round(value, _DECIMALS)
    return RuleTerms(value, len(validation))


@dataclass(frozen=True)
class Scoring:
    """One model with its rule, and the rows that it is scored on."""

    plan: StudyPlan
    model: Model
    parameters: SiteParameters
    rule: DecisionRule
    test: Examples  # scaled
    follow_up: Examples  # gives the censoring of a survival task
    seed: int = 0  # of errors and draws

    def on(self, rows: Bools) -> Scoring:
        """The same on some of the test rows."""
        test, chosen = self.test, torch.from_numpy(rows)
        event = None if test.event is None else test.event[chosen]
        return replace(self, test=Examples(test.features[chosen], test.target[chosen], event))

    def scores(self) -> Scores[Any]:
        """The model's predictions beside their outcomes; there must be test rows."""
        task, test, follow_up = self.plan.task, self.test, self.follow_up
        raw = outputs(self.model, self.parameters, test.features)
        if task.kind == "cox":
            assert test.event is not None
            assert follow_up.event is not None
            assert task.horizon is not None
            eta = raw[:, 0]
            risk = None if self.rule.baseline is None else self.rule.baseline.risk(eta).numpy()
            seen = (test.target, test.event, follow_up.target, follow_up.event)
            return survival_scores(
                eta.numpy(), risk, np.asarray(task.grid), task.horizon, *(part.numpy() for part in seen)
            )
        predicted, target = probabilities(self.model, raw).numpy(), test.target.numpy()
        if task.kind == "multiclass":
            return multiclass_scores(predicted, target)
        if self.rule.threshold is None:
            raise TrainingError(
                "a binary task is scored with a threshold, and none was chosen",
                hint="choose the threshold on validation rows first (task.threshold in the plan)",
            )
        return binary_scores(predicted, target, self.rule.threshold.value)

    def measure(self, only: Collection[str] | None = None) -> tuple[MetricResult, ...]:
        """Every metric of the plan's kind of task, or some."""
        if not len(self.test):
            names = metric_names(self.plan.task.kind) if only is None else only
            return tuple(SkippedMetric(name, "no test rows") for name in names)
        return self.scores().measure(only)
