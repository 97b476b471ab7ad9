"""A site's half of every step: rows, prior and the site's own model in, an answer and its tensors out.

Statistics, the first model, a round of local MAP estimation, the terms of a decision rule, scores. Every
driver of a study comes here, so that all of them give the same bits. Nothing is read from disk, nothing is
sent, and nothing is withheld but what needs the rows themselves (small cells): the rest is the exit gate's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.values import FailedFit, Model
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import initial_parameters
from fedmap.contract.v1.values import (
    FitAnswer,
    GlobalRule,
    InitialModelAnswer,
    MissingCells,
    Score,
    StatisticsAnswer,
    Task,
)
from fedmap.data.table.site_dataset import SiteDataset, scale_dataset
from fedmap.errors import FedmapError, IncompatibleError, ModelError, TrainingError
from fedmap.scoring.disclosure import events, is_small_cell, released_statistics, rounded_count
from fedmap.scoring.evaluation import Scoring, local_rule, rule_terms
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answer_names import GLOBAL, PERSONAL, layout_digest
from fedmap.study.answers import Work, rule_of, told_score, told_terms
from fedmap.study.engine import LoopEngine, RoundSite, fit_round
from fedmap.study.failures import failure_answer
from fedmap.study.last_evaluation import FinalEvaluation
from fedmap.study.models import model_of
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms

Stage = Literal["training", "scoring"]
OnProgress = Callable[[Stage, float], None]  # and the share of the stage that is done


def failed_work(error: FedmapError) -> Work:
    """The answer of a task that could not be done, whatever the reason."""
    return Work(failure_answer(error), error=error)


def use_one_thread() -> None:
    """Results are then the same bits on every machine; the agent calls it once, before it trains."""
    torch.set_num_threads(1)


def site_step(
    task: Task,
    terms: StudyTerms,
    dataset: SiteDataset,
    prior: PriorFile | None,
    own: OwnModel | None,
    floor: int,
    on_progress: OnProgress,
) -> Work:
    """Do one task. `dataset` is not scaled; `own` is the newest own model before this task's round.

    Cells below `floor` do not leave. A fit that fails is an answer too: the centre hears that it failed, the
    site's own log says why.
    """
    job = _Job(task, terms, dataset, model_of(terms.plan), own, floor, on_progress)
    match task.kind:
        case "statistics":
            return _statistics(job)
        case "initialise":
            return _first_model(job)
        case "unspecified":
            raise IncompatibleError(
                f"the task {task.id} is of a kind that this agent does not know",
                hint="Update the site agent.",
            )
    if prior is None:
        raise ModelError(
            f"the task {task.id} came without a prior", hint="Ask the operator; the study may be damaged."
        )
    match task.kind:
        case "fit":
            return _fit(job, prior)
        case "rule":
            return _rule(job, prior)
        case "evaluate":
            return _evaluation(job, prior)


@dataclass(frozen=True)
class _Job:
    task: Task
    terms: StudyTerms
    dataset: SiteDataset
    model: Model
    own: OwnModel | None
    floor: int
    on_progress: OnProgress

    def scaled(self, prior: PriorFile) -> SiteDataset:
        return scale_dataset(self.terms.plan, self.dataset, prior.scaler)

    def rows(self) -> torch.Tensor:
        """Inputs of all rows but those that only test, as they were loaded."""
        return torch.cat([self.dataset.train.features, self.dataset.validation.features])


def _statistics(job: _Job) -> Work:
    job.on_progress("training", 0.0)
    layout, floor = job.dataset.layout, job.floor
    released = released_statistics(job.rows(), layout.scaled, floor)
    rows = released.statistics.rows
    missing = tuple(
        MissingCells(one.feature, rounded_count(one.cells, floor), rounded_count(one.of, floor) or 0)
        for one in job.dataset.missing
    )
    found = events(job.terms.plan.task.kind, job.dataset.train, job.dataset.validation)
    told = None if found is None or is_small_cell(rows - found, floor) else rounded_count(found, floor)
    if told is not None:
        told = min(told, rows - rows % floor)
    withheld = sum(one.cells is None for one in missing)
    notes = (
        (released.unscaled, f"{released.unscaled} inputs that are not scaled: mean and M2 sent as 0"),
        (released.rare, f"{released.rare} inputs with a small cell: sent as constant"),
        (withheld, f"{withheld} features with few empty cells: their count not sent"),
        (found is not None and told is None, "few rows with or without an event: their count not sent"),
    )
    content = StatisticsAnswer(rows, layout_digest(layout.names), tuple(layout.names), missing, told)
    return Work(content, released.statistics, notes=tuple(note for said, note in notes if said))


def _first_model(job: _Job) -> Work:
    theta = initial_parameters(job.model.network, job.terms.seed, job.dataset.site)
    return Work(InitialModelAnswer(), theta)


def _fit(job: _Job, file: PriorFile) -> Work:
    terms, number, prior = job.terms, job.task.round, file.prior
    plan, data = terms.plan, job.scaled(file)
    job.on_progress("training", 0.0)
    engine = LoopEngine(lambda done, most: job.on_progress("training", done / most))
    site = RoundSite(data.site, data.train, data.validation, job.own)
    this = LocalRound(plan.settings, number, terms.rounds)
    done = fit_round(engine, job.model, this, prior, terms.seed, [site])[data.site]
    if isinstance(done, FailedFit):
        failure = TrainingError(
            f"round {number}: {done.reason}",
            hint="Check the feature ranges; the operator can lower training.learning_rate in a new study.",
        )
        return failed_work(failure)
    fit, own = done.fit, done.own
    scores: tuple[Score, ...] = ()
    if number % plan.rounds.evaluate_every == 0 or number in (1, terms.rounds):
        job.on_progress("scoring", 0.0)
        shared = SiteParameters(prior.mu, prior.buffers)
        models = ((PERSONAL, own.parameters), (GLOBAL, shared))
        scores = tuple(_validation_score(job, data, name, model) for name, model in models)
    content = FitAnswer(fit.log_omega, fit.loss / fit.rows, fit.validation_loss, fit.epochs, scores)
    return Work(content, None if fit.log_omega is None else own.update, own)


def _validation_score(job: _Job, data: SiteDataset, name: str, own: SiteParameters) -> Score:
    """The plan's metric on validation rows, under the model's own rule."""
    plan = job.terms.plan
    rule = local_rule(plan, job.model, own, data.train, data.validation)
    scoring = Scoring(plan, job.model, own, rule, data.validation, data.train)
    (result,) = scoring.measure([plan.task.metric])
    return told_score(name, result)


def _rule(job: _Job, file: PriorFile) -> Work:
    job.on_progress("scoring", 0.0)
    plan, data = job.terms.plan, job.scaled(file)
    shared = SiteParameters(file.prior.mu, file.prior.buffers)
    terms = rule_terms(plan, job.model, shared, data.train, data.validation, job.floor)
    # In the federation's units also where the plan scales locally: a clinic has no other.
    reference = reference_terms(file.scaler.apply(job.rows()), data.layout.scaled, job.floor)
    return Work(*told_terms(terms, reference))


def _evaluation(job: _Job, file: PriorFile) -> Work:
    job.on_progress("scoring", 0.0)
    data = job.scaled(file)
    last = FinalEvaluation(
        job.terms, job.model, data, file, job.floor, lambda share: job.on_progress("scoring", share)
    )
    own = job.own.parameters if job.own is not None and job.own.is_personal else None
    found = last.answer(own, rule_of(job.task.rule or GlobalRule()))
    return Work(found.content, notes=found.notes)


def is_step(task: Task, rounds: int) -> bool:
    """Whether the terms have this task: one of each kind, and as many rounds as were agreed."""
    if task.kind == "fit":
        return 1 <= task.round <= rounds and task.id == f"round-{task.round}"
    return task.kind != "unspecified" and task.id == task.kind and not task.round
