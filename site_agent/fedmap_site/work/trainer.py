"""Does a task: rows, prior and the site's own model in, an answer's content and tensors out.

Statistics, the first model, a round of local MAP estimation, the terms of a decision rule, scores. The same
functions as in the simulator, in the same order, with the same seeds: a test demands the same bits. Nothing
is read from disk, nothing is sent, and nothing is withheld for policy except what needs the rows themselves
(small cells): the rest is the exit gate's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.round import LocalRound, OwnModel
from fedmap.algorithm.fit.values import FailedFit, Model
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import initial_parameters
from fedmap.algorithm.seeding import derive_seed
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.data.scaling import scale_dataset
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import FedmapError, IncompatibleError, ModelError, TrainingError
from fedmap.scoring.disclosure import is_small_cell, released_statistics, rounded_count
from fedmap.scoring.evaluation import Scoring, local_rule, rule_terms
from fedmap.shift.told.terms import reference_terms
from fedmap.study.answer_names import GLOBAL, PERSONAL, layout_digest
from fedmap.study.answers import rule_answer, rule_of, score_message
from fedmap.study.models import model_of
from fedmap.study.tensors.parameter_files import PriorFile, encode_parameters, encode_statistics, encode_theta
from fedmap.study.terms import StudyTerms
from fedmap_site.data.loader import events
from fedmap_site.policy import SitePolicy, floors_of
from fedmap_site.work.evaluation import FinalEvaluation
from fedmap_site.work.failures import failure_answer

Content = (
    pb.StatisticsAnswer
    | pb.InitialModelAnswer
    | pb.FitAnswer
    | pb.RuleAnswer
    | pb.EvaluationAnswer
    | pb.FailureAnswer
)
OnProgress = Callable[[str, float], None]  # stage, and the share of it that is done


@dataclass(frozen=True)
class Work:
    """What came of a task, before the exit gate has looked at it."""

    content: Content
    tensors: bytes = b""
    model: OwnModel | None = None
    """What the site keeps of this round, exact: what leaves may be clipped, this is not."""
    notes: tuple[str, ...] = ()
    """What was left out already because it needs the rows to know; for the manifest."""
    local_reason: str = ""
    """Why the task failed, in full: for the site's own log and status, never sent."""


def failed_work(error: FedmapError) -> Work:
    """The answer of a task that could not be done, whatever the reason."""
    return Work(failure_answer(error), local_reason=str(error))


def use_one_thread() -> None:
    """Results are then the same bits on every machine; the agent calls it once, before it trains."""
    torch.set_num_threads(1)


def perform(
    task: pb.Task,
    terms: StudyTerms,
    dataset: SiteDataset,
    prior: PriorFile | None,
    own: OwnModel | None,
    policy: SitePolicy,
    on_progress: OnProgress,
) -> Work:
    """Do one task. `dataset` is not scaled; `own` is the newest own model before this task's round.

    A fit that fails is an answer too: the centre hears that it failed, the site's own log says why.
    """
    job = _Job(task, terms, dataset, model_of(terms.plan), own, policy, on_progress)
    match task.kind:
        case pb.TASK_KIND_STATISTICS:
            return _statistics(job)
        case pb.TASK_KIND_INITIALISE:
            return _first_model(job)
    if prior is None:
        raise ModelError(
            f"the task {task.id} came without a prior", hint="Ask the operator; the study may be damaged."
        )
    match task.kind:
        case pb.TASK_KIND_FIT:
            return _fit(job, prior)
        case pb.TASK_KIND_RULE:
            return _rule(job, prior)
        case pb.TASK_KIND_EVALUATE:
            return _evaluation(job, prior)
    raise IncompatibleError(
        f"the task {task.id} is of a kind that this agent does not know", hint="Update the site agent."
    )


@dataclass(frozen=True)
class _Job:
    task: pb.Task
    terms: StudyTerms
    dataset: SiteDataset
    model: Model
    own: OwnModel | None
    policy: SitePolicy
    on_progress: OnProgress

    def scaled(self, prior: PriorFile) -> SiteDataset:
        return scale_dataset(self.terms.plan, self.dataset, prior.scaler)


def _statistics(job: _Job) -> Work:
    job.on_progress("training", 0.0)
    data = job.dataset
    floor = floors_of(job.terms.plan, job.policy).min_cell
    rows = torch.cat([data.train.features, data.validation.features])
    released = released_statistics(rows, data.layout.scaled, floor)
    notes = [f"{released.unscaled} inputs that are not scaled: mean and M2 sent as 0"] * bool(
        released.unscaled
    )
    notes += [f"{released.rare} inputs with a small cell: sent as constant"] * bool(released.rare)
    content = pb.StatisticsAnswer(
        rows=released.statistics.rows,
        layout_digest=layout_digest(data.layout.names),
        input_names=data.layout.names,
    )
    notes += _count(content, job, floor)
    return Work(content, encode_statistics(released.statistics), notes=tuple(notes))


def _count(content: pb.StatisticsAnswer, job: _Job, floor: int) -> list[str]:
    """Events and empty cells, rounded: they stand beside other counts of the same rows."""
    withheld = 0
    for one in job.dataset.missing:
        cells, of = rounded_count(one.cells, floor), rounded_count(one.of, floor) or 0
        content.missing.add(feature=one.feature, cells=cells, of=of)
        withheld += cells is None
    notes = [f"{withheld} features with few empty cells: their count not sent"] * bool(withheld)
    found = events(job.terms.plan, job.dataset.train, job.dataset.validation)
    if found is None:
        return notes
    rounded = rounded_count(found, floor)
    if rounded is None or is_small_cell(content.rows - found, floor):
        return [*notes, "few rows with or without an event: their count not sent"]
    content.events = min(rounded, content.rows - content.rows % floor)
    return notes


def _first_model(job: _Job) -> Work:
    network = job.model.network
    theta = initial_parameters(network, job.terms.seed, job.dataset.site)
    return Work(pb.InitialModelAnswer(), encode_theta(network, theta))


def _fit(job: _Job, file: PriorFile) -> Work:
    plan, number, prior = job.terms.plan, job.task.round, file.prior
    this = LocalRound(plan.settings, number, job.terms.rounds)
    data = job.scaled(file)
    seed = derive_seed(job.terms.seed, "fit", number, data.site)
    job.on_progress("training", 0.0)
    (fit,) = fit_sites(
        job.model,
        plan.settings,
        prior,
        [this.task(prior, job.own, data.train, data.validation, seed)],
        "autograd_likelihood",
        penalised=not this.is_consensus,
        rule=this.rule,
        on_epoch=lambda done, most: job.on_progress("training", done / most),
    )
    if isinstance(fit, FailedFit):
        failure = TrainingError(
            f"round {number}: {fit.reason}",
            hint="Check the feature ranges; the operator can lower training.learning_rate in a new study.",
        )
        return failed_work(failure)
    own = this.kept(prior, job.own, fit)
    content = pb.FitAnswer(loss=fit.loss / fit.rows, epochs=fit.epochs)
    if fit.validation_loss is not None:
        content.validation_loss = fit.validation_loss
    if number % plan.rounds.evaluate_every == 0 or number in (1, job.terms.rounds):
        job.on_progress("scoring", 0.0)
        shared = SiteParameters(prior.mu, prior.buffers)
        content.validation_scores.extend(
            _validation_score(job, data, name, model)
            for name, model in ((PERSONAL, own.parameters), (GLOBAL, shared))
        )
    if fit.log_omega is None:
        return Work(content, model=own)
    content.log_omega = fit.log_omega
    return Work(content, encode_parameters(job.model.network, own.update), own)


def _validation_score(job: _Job, data: SiteDataset, name: str, own: SiteParameters) -> pb.Score:
    """The plan's metric on validation rows, under the model's own rule."""
    plan = job.terms.plan
    rule = local_rule(plan, job.model, own, data.train, data.validation)
    scoring = Scoring(plan, job.model, own, rule, data.validation, data.train)
    (result,) = scoring.measure([plan.task.metric])
    return score_message(name, result)


def _rule(job: _Job, file: PriorFile) -> Work:
    job.on_progress("scoring", 0.0)
    plan, data = job.terms.plan, job.scaled(file)
    shared = SiteParameters(file.prior.mu, file.prior.buffers)
    floor = floors_of(plan, job.policy).min_cell
    terms = rule_terms(plan, job.model, shared, data.train, data.validation, floor)
    rows = torch.cat([job.dataset.train.features, job.dataset.validation.features])
    # In the federation's units also where the plan scales locally: a clinic has no other.
    reference = reference_terms(file.scaler.apply(rows), data.layout.scaled, floor)
    content, tensors = rule_answer(terms, reference)
    return Work(content, tensors)


def _evaluation(job: _Job, file: PriorFile) -> Work:
    job.on_progress("scoring", 0.0)
    floor = floors_of(job.terms.plan, job.policy).min_cell
    last = FinalEvaluation(
        job.terms,
        job.model,
        job.scaled(file),
        file,
        floor,
        lambda share: job.on_progress("scoring", share),
    )
    own = job.own.parameters if job.own is not None and job.own.is_personal else None
    found = last.answer(own, rule_of(job.task.rule))
    return Work(found.content, notes=found.notes)


_ONCE: Mapping[int, str] = {
    pb.TASK_KIND_STATISTICS: "statistics",
    pb.TASK_KIND_INITIALISE: "initialise",
    pb.TASK_KIND_RULE: "rule",
    pb.TASK_KIND_EVALUATE: "evaluate",
}


def is_step(task: pb.Task, rounds: int) -> bool:
    """Whether the terms have this task: one of each kind, and as many rounds as were agreed."""
    if task.kind == pb.TASK_KIND_FIT:
        return 1 <= task.round <= rounds and task.id == f"round-{task.round}"
    return task.id == _ONCE.get(task.kind) and not task.round
