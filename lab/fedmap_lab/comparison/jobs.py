"""One training run of one method, as a job that is done or not, and what it leaves.

A trial trains and looks at validation rows only. A run trains, serves T2 and T3 and scores test rows, once.
A method that is not defined for the plan, or that diverges, leaves that as its outcome; the comparison goes
on. Nothing here writes files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field

from fedmap.errors import ModelError, TrainingError
from fedmap.metrics import SkippedMetric
from fedmap.study.engine import Engine
from fedmap_lab.comparison.measured import (
    CalibrationRecord,
    Record,
    SubgroupRecord,
    calibration_records,
    subgroup_records,
)
from fedmap_lab.comparison.trials import apply
from fedmap_lab.federation.sites import Federation
from fedmap_lab.methods.method import FailedSite, Method, RoundRecord, Run
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.simulation.kept_models import about_run, encode_models
from fedmap_lab.simulation.simulate import Study, median_on_validation, simulate

FIRST_SEED = 0
"""The one whose models are kept."""

Kind = Literal["trial", "run"]
Outcome = Literal["done", "undefined", "diverged"]
LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


class Job(Record):
    """What to train. Equal jobs give equal results, whoever runs them."""

    kind: Kind
    method: str
    seed: int
    trial: int = 0  # 0 for a run
    setting: Mapping[str, float] = {}
    rounds: int

    @property
    def key(self) -> str:
        """The name of its record."""
        return f"{self.kind}-{self.method}-{self.seed}-{self.trial}"


class ScoreRecord(Record):
    tier: int
    site: str
    region: str
    model: Literal["personal", "global"]
    metric: str
    value: float | None
    note: str  # why there is no value, or how it departs from the metric's definition


class RoundNumbers(Record):
    round: int
    loss: float | None
    penalty: float | None
    convex_penalty: float | None
    validation_loss: float | None
    largest_weight: float | None
    personal: float | None  # the plan's metric on validation rows, median over T1; where it was looked at
    shared: float | None


class Weight(Record):
    round: int
    site: str
    weight: float


class SiteFailure(Record):
    round: int
    site: str
    reason: str


class JobResult(Record):
    """What a job leaves."""

    job: Job
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    validation: float | None = None  # the plan's metric on validation rows, median over T1
    scores: tuple[ScoreRecord, ...] = ()
    rounds: tuple[RoundNumbers, ...] = ()
    weights: tuple[Weight, ...] = ()
    failed: tuple[SiteFailure, ...] = ()
    calibration: tuple[CalibrationRecord, ...] = ()
    subgroups: tuple[SubgroupRecord, ...] = ()
    models: Mapping[str, bytes] = Field(default={}, exclude=True)  # files of the first seed's models


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
