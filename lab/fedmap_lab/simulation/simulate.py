"""A whole study in one process: T1 trains, T2 fine-tunes, T3 predicts, everybody is scored.

Returns plain records; writing and drawing them is `results` and `figures`. Test rows are touched once, at
the end: the curve over the rounds is measured on validation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.metrics import Metric, MetricResult, SkippedMetric, metric_names
from fedmap.scoring.decision_rules import DecisionRule, pool_rule
from fedmap.scoring.evaluation import Scoring, local_rule, rule_terms
from fedmap.study.engine import Engine
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.method import FailedSite, Method, Progress, Run, Trained


@dataclass(frozen=True)
class Score:
    """One metric of one model at one site; `model` is personal or global."""

    tier: int
    site: str
    region: str
    model: str
    result: MetricResult


@dataclass(frozen=True)
class CurvePoint:
    """The plan's metric on validation rows after a round: median over the T1 sites."""

    round: int
    personal: float | None
    shared: float | None


@dataclass(frozen=True)
class Study:
    """Everything a simulation found out."""

    federation: Federation
    trained: Trained
    fine_tuned: Mapping[str, SiteParameters]
    rule: DecisionRule  # of the global model
    rules: Mapping[str, DecisionRule]  # of the personal models
    scores: tuple[Score, ...]
    curve: tuple[CurvePoint, ...]
    failed: tuple[FailedSite, ...]


OnRound = Callable[[int], None]
LEAST_LOOKS = 5
"""Points of a curve, where there are as many rounds."""


def simulate(
    federation: Federation,
    method: Method,
    engine: Engine,
    rounds: int,
    seed: int,
    on_round: OnRound = lambda _: None,
) -> Study:
    """Run the three tiers."""
    curve: list[CurvePoint] = []
    # A run of few rounds is looked at more often than the plan says: two points make no curve.
    every = min(federation.plan.rounds.evaluate_every, max(1, rounds // LEAST_LOOKS))

    def watch(progress: Progress) -> None:
        number = progress.record.round
        if number % every == 0 or number in (1, rounds):
            curve.append(_curve_point(federation, progress))
        on_round(number)

    run = Run(federation, engine, rounds, seed)
    trained = method.train(run, watch)
    fine_tuned, failed = method.personalise(run, trained, federation.tier(2))
    model = trained.model or federation.model
    shared = None if trained.prior is None else SiteParameters(trained.prior.mu, trained.prior.buffers)
    rule = DecisionRule() if shared is None else pooled_rule(federation, shared)
    scores: list[Score] = []
    rules: dict[str, DecisionRule] = {}
    for site in federation.sites:
        own = trained.personal.get(site.name) or fine_tuned.get(site.name)
        if own is not None:
            rules[site.name] = local_rule(federation.plan, model, own, site.data.train, site.data.validation)
            scores += _scores(federation, model, site, "personal", own, rules[site.name])
        elif site.tier < 3:
            scores += _unscored(federation, site, "personal", "no fit gave this site a model of its own")
        if shared is not None:
            scores += _scores(federation, federation.model, site, "global", shared, rule)
        elif site.tier == 3:
            scores += _unscored(federation, site, "global", "this method has no global model")
    return Study(
        federation, trained, fine_tuned, rule, rules, tuple(scores), tuple(curve), trained.failed + failed
    )


def pooled_rule(federation: Federation, shared: SiteParameters) -> DecisionRule:
    """The global model's rule, from the T1 sites: mean threshold by validation rows, or pooled baseline."""
    plan, model = federation.plan, federation.model
    terms = {
        site.name: rule_terms(plan, model, shared, site.data.train, site.data.validation)
        for site in federation.tier(1)
    }
    return pool_rule(plan, terms)


def _scores(
    federation: Federation,
    model: Model,
    site: Site,
    label: str,
    parameters: SiteParameters,
    rule: DecisionRule,
) -> list[Score]:
    follow_up = site.data.train if len(site.data.train) else site.data.test
    scoring = Scoring(federation.plan, model, parameters, rule, site.data.test, follow_up)
    return [Score(site.tier, site.name, site.region, label, result) for result in scoring.measure()]


def _unscored(federation: Federation, site: Site, label: str, reason: str) -> list[Score]:
    names = metric_names(federation.plan.task.kind)
    return [Score(site.tier, site.name, site.region, label, SkippedMetric(name, reason)) for name in names]


def _curve_point(federation: Federation, progress: Progress) -> CurvePoint:
    """No figure for a method whose models are made only after the last round."""
    number, personal, prior = progress.record.round, progress.personal, progress.prior
    own = median_on_validation(federation, federation.model, personal)
    if prior is None:
        return CurvePoint(number, own, None)
    shared = dict.fromkeys(personal, SiteParameters(prior.mu, prior.buffers))
    return CurvePoint(number, own, median_on_validation(federation, federation.model, shared))


def median_on_validation(
    federation: Federation, model: Model, models: Mapping[str, SiteParameters]
) -> float | None:
    """The plan's metric on validation rows under each site's own rule, median over the sites that have it."""
    plan = federation.plan
    values = []
    for site in federation.tier(1):
        if site.name not in models:
            continue
        own, train, validation = models[site.name], site.data.train, site.data.validation
        rule = local_rule(plan, model, own, train, validation)
        (result,) = Scoring(plan, model, own, rule, validation, train).measure([plan.task.metric])
        if isinstance(result, Metric):
            values.append(result.value)
    return float(np.median(values)) if values else None
