"""What turns a model's outputs into decisions, and how the sites' terms become the global model's rule.

Sites make their terms in `evaluation`, where patient rows are; here the centre pools them. No rows, no
scoring libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmap.algorithm.pooling.baseline import Baseline, BaselineTerms, pool_baseline
from fedmap.errors import TrainingError
from fedmap.metrics import Threshold
from fedmap.study.plan.study_plan import StudyPlan


@dataclass(frozen=True)
class DecisionRule:
    """What turns outputs into decisions: a threshold (binary) or a baseline hazard (survival)."""

    threshold: Threshold | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class RuleTerms:
    """One site's contribution to the global model's rule."""

    threshold: float | None = None  # binary; None where its validation rows gave none
    validation_rows: int = 0  # weighs the threshold
    baseline: BaselineTerms | None = None  # survival


def pool_rule(plan: StudyPlan, by_site: Mapping[str, RuleTerms]) -> DecisionRule:
    """The global model's rule: mean threshold by validation rows, or pooled baseline."""
    ordered = [(site, by_site[site]) for site in sorted(by_site)]
    if plan.task.kind == "cox":
        terms = {site: own.baseline for site, own in ordered if own.baseline is not None}
        try:
            return DecisionRule(baseline=pool_baseline(terms, plan.task.grid))
        except TrainingError:
            return DecisionRule()  # risk-based metrics are then skipped, each with its reason
    if plan.task.kind == "multiclass":
        return DecisionRule()
    chosen = [(own.threshold, own.validation_rows) for _, own in ordered if own.threshold is not None]
    if sum(rows for _, rows in chosen):
        values, rows = zip(*chosen, strict=True)
        return DecisionRule(Threshold(float(np.average(values, weights=rows))))
    asked = plan.task.threshold
    if asked is not None and asked.rule == "fixed" and asked.value is not None:
        return DecisionRule(Threshold(asked.value))
    return DecisionRule(Threshold(0.5, "no T1 site could choose a threshold on its validation rows"))
