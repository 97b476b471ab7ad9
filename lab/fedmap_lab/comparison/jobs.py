"""One training run of one method, as a job that is done or not.

A trial trains and looks at validation rows only. A run trains, serves T2 and T3 and scores test rows, once;
it measures calibration by tier, and figures by category, because models and rows are gone afterwards. A
method that is not defined for the plan, or that diverges, leaves that as its outcome. Nothing is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError, TrainingError
from fedmap.metrics import Metric, SkippedMetric
from fedmap.scoring.calibration_bins import pool_bins
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.evaluation import Scoring
from fedmap.scoring.evaluation_terms import calibration_terms, subgroup_rows
from fedmap.study.engine import Engine
from fedmap_lab.comparison.results import (
    CalibrationRecord,
    Job,
    JobResult,
    RoundNumbers,
    ScoreRecord,
    SiteFailure,
    SubgroupRecord,
    Weight,
)
from fedmap_lab.comparison.trials import apply
from fedmap_lab.federation.sites import Federation, Site
from fedmap_lab.methods.method import FailedSite, Method, RoundRecord, Run
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.simulation.kept_models import about_run, encode_models
from fedmap_lab.simulation.simulate import Study, median_on_validation, simulate

FIRST_SEED = 0
"""The one whose models are kept."""

LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


def run_job(federation: Federation, engine: Engine, job: Job) -> JobResult:
    """Do a job in this process."""
    method, federation = apply(job.setting, METHODS[job.method], federation)
    refusal = method.refusal(federation.plan, federation.settings)
    if refusal is not None:
        return JobResult(job=job, outcome="undefined", reason=refusal)
    began = time.perf_counter()
    try:
        result = (_trial if job.kind == "trial" else _run)(federation, method, engine, job)
    except (TrainingError, ModelError) as error:
        result = JobResult(job=job, outcome="diverged", reason=error.message)
    except LinAlgError:
        result = JobResult(job=job, outcome="diverged", reason="a matrix of the method became singular")
    return result.model_copy(update={"seconds": round(time.perf_counter() - began, 3)})


def _trial(federation: Federation, method: Method, engine: Engine, job: Job) -> JobResult:
    trained = method.train(Run(federation, engine, job.rounds, job.seed), lambda _: None)
    value = median_on_validation(federation, trained.model or federation.model, trained.personal)
    return JobResult(job=job, outcome="done", validation=value, failed=_failures(trained.failed))


def _run(federation: Federation, method: Method, engine: Engine, job: Job) -> JobResult:
    study = simulate(federation, method, engine, job.rounds, job.seed)
    trained = study.trained
    value = median_on_validation(federation, trained.model or federation.model, trained.personal)
    looked_at = {point.round for point in study.curve}
    return JobResult(
        job=job,
        outcome="done",
        validation=value,
        scores=_scores(study),
        rounds=tuple(_round(record, study) for record in trained.history),
        weights=tuple(
            Weight(round=record.round, site=site, weight=weight)
            for record in trained.history
            if record.round in looked_at
            for site, weight in sorted(record.weights.items())
        ),
        failed=_failures(study.failed),
        calibration=calibration_records(study),
        subgroups=subgroup_records(study),
        models=_models(study, method, job),
    )


def _models(study: Study, method: Method, job: Job) -> Mapping[str, bytes]:
    if job.seed != FIRST_SEED:
        return {}
    about = about_run(study, job.method, method, job.rounds, job.seed)
    return {} if about is None else encode_models(study, about)


def _scores(study: Study) -> tuple[ScoreRecord, ...]:
    return tuple(
        ScoreRecord(
            tier=s.tier,
            site=s.site,
            region=s.region,
            model="personal" if s.model == "personal" else "global",
            metric=s.result.name,
            value=None if isinstance(s.result, SkippedMetric) else s.result.value,
            note=s.result.reason if isinstance(s.result, SkippedMetric) else s.result.note or "",
        )
        for s in study.scores
    )


def _round(record: RoundRecord, study: Study) -> RoundNumbers:
    point = next((point for point in study.curve if point.round == record.round), None)
    finite = ("loss", "penalty", "convex_penalty", "validation_loss", "largest_weight")
    return RoundNumbers(
        round=record.round,
        personal=None if point is None else point.personal,
        shared=None if point is None else point.shared,
        **{name: _finite(getattr(record, name)) for name in finite},
    )


def _failures(failed: tuple[FailedSite, ...]) -> tuple[SiteFailure, ...]:
    return tuple(SiteFailure(round=f.round, site=f.site, reason=f.reason) for f in failed)


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def calibration_records(study: Study) -> tuple[CalibrationRecord, ...]:
    """The curves of the three tiers; none for a task without a risk."""
    floor = study.federation.plan.limits.min_cell
    found = []
    for tier in (1, 2, 3):
        by_site = {
            site.name: calibration_terms(scoring, floor)
            for site in study.federation.tier(tier)
            if (scoring := _scoring(study, site)) is not None
        }
        found += [
            CalibrationRecord(tier=tier, model="global" if tier == 3 else "personal", **one.model_dump())
            for one in pool_bins(by_site)
        ]
    return tuple(found)


def subgroup_records(study: Study) -> tuple[SubgroupRecord, ...]:
    """Every category at every site that has a model."""
    plan = study.federation.plan
    found = []
    for site in study.federation.sites:
        scoring = _scoring(study, site)
        if scoring is None or not len(site.data.test):
            continue
        for group in subgroup_rows(scoring, site.data.layout.names, plan.limits.min_cell):
            value = _value(scoring.on(group.rows)) if group.told else None
            at = {"tier": site.tier, "site": site.name, "column": group.column, "category": group.category}
            found.append(SubgroupRecord(value=value, **at))
    return tuple(found)


def _scoring(study: Study, site: Site) -> Scoring | None:
    """The model that counts at a site; None where there is none."""
    federation, trained = study.federation, study.trained
    own: SiteParameters | None
    if site.tier == 3:
        own = None if trained.prior is None else SiteParameters(trained.prior.mu, trained.prior.buffers)
        model, rule = federation.model, study.rule
    else:
        own = trained.personal.get(site.name) or study.fine_tuned.get(site.name)
        model, rule = trained.model or federation.model, study.rules.get(site.name, DecisionRule())
    if own is None:
        return None
    follow_up = site.data.train if len(site.data.train) else site.data.test
    return Scoring(federation.plan, model, own, rule, site.data.test, follow_up)


def _value(scoring: Scoring) -> float | None:
    (result,) = scoring.measure([scoring.plan.task.metric])
    return result.value if isinstance(result, Metric) else None
