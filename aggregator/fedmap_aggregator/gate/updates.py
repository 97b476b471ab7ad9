"""The gate: a site's answer is let in as the study's terms and the cohort allow, or refused with one reason.

In this order:

1. the message belongs to this site, study, terms and task (`check_header`, before a byte of tensors arrives);
2. its content is of the task's kind, or says why there is none; its tensors are as large as the plan says;
3. numbers in the message are finite and possible under the plan;
4. tensors have the plan's names, shapes and types, and are finite (`parameter_files`);
5. parameters are not far from the cohort's norm; log ω is one that the plan's weighting can give;
   statistics and baseline terms are such as rows within the plan's ranges can have; counts, calibration and
   groups fit each other (`figures`).

Whether the task is still open, and whether the bytes are those that were announced, is decided before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.network import Network
from fedmap.contract.v1.values import (
    Answer,
    EvaluationAnswer,
    FailureAnswer,
    FitAnswer,
    InitialModelAnswer,
    RuleAnswer,
    Score,
    StatisticsAnswer,
)
from fedmap.errors import FedmapError, ModelError, RejectedError
from fedmap.files.digests import is_digest
from fedmap.metrics import metric_names
from fedmap.study.answer_names import GLOBAL, MODELS, PERSONAL, WITHHELD
from fedmap.study.answers import content_of, result_of, terms_of
from fedmap.study.course.state import AnswerStatus, OpenTask
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import decode_theta, parameters_norm
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.gate.figures import check_counts, check_evaluation, check_inputs, check_reference_terms
from fedmap_aggregator.gate.headers import SAME_VERSION, GateLimits, check_header, demand
from fedmap_aggregator.gate.statistics import check_baseline, check_statistics

MOST_ROWS = 1_000_000_000
MOST_REASON = 2000
"""Characters of a failure's reason."""
_ROUNDING = 1e-6  # of a log weight that is zero or less
_DIVERGED = "training at the site diverged: check its data against the plan, then wait for the next round"


@dataclass(frozen=True)
class CheckedAnswer:
    """What the gate found out about an answer that it let pass."""

    status: AnswerStatus  # accepted, abstained or failed
    norm: float | None = None  # ‖θ‖; initial models and fits


def check_answer(
    terms: StudyTerms,
    model: Model,
    task: OpenTask,
    answer: Answer,
    tensors: Path | None,
    limits: GateLimits,
    cohort_norm: float | None,
) -> CheckedAnswer:
    """All steps, on an answer that has arrived whole. `tensors` is None where it has none.

    `cohort_norm` is the median norm of the last round; in round 1, ‖μ⁰‖ (the norm of the initial model).
    """
    check_header(terms, task, answer, answer.site, limits, model)
    arrived = (tensors is not None) == (answer.tensors_size > 0)
    demand(arrived, "the answer came without its tensors")
    try:
        return _judge(terms.plan, model, task, answer, tensors, limits, cohort_norm)
    except ModelError as error:
        raise RejectedError(error.message, hint=error.hint) from error


def _judge(
    plan: StudyPlan,
    model: Model,
    task: OpenTask,
    answer: Answer,
    tensors: Path | None,
    limits: GateLimits,
    cohort_norm: float | None,
) -> CheckedAnswer:
    match content_of(answer):
        case FailureAnswer() as failure:
            return check_failure(failure)
        case StatisticsAnswer() as told if tensors is not None:
            check_rows(plan, told)
            check_inputs(plan, told)
            check_counts(plan, told)
            check_statistics(plan, tensors, told.rows)
            return CheckedAnswer("accepted")
        case InitialModelAnswer() if tensors is not None:
            norm = _norm(decode_theta(model.network, tensors))
            _check_norm(norm, max(1.0, _fresh_norm(model)), limits)
            return CheckedAnswer("accepted", norm)
        case FitAnswer() as fit:
            return _check_fit(plan, model, task, fit, tensors, limits, cohort_norm)
        case RuleAnswer() as rule:
            _check_rule(plan, rule, tensors)
            return CheckedAnswer("accepted")
        case EvaluationAnswer() as evaluation:
            _check_scores(plan, evaluation.scores, MODELS)
            check_evaluation(plan, evaluation)
            _check_groups(plan, evaluation)
            return CheckedAnswer("accepted")
    raise RejectedError("the answer lacks its tensors", hint=SAME_VERSION)


def check_failure(failure: FailureAnswer) -> CheckedAnswer:
    """A known code, and a reason that can be shown."""
    known = failure.code == WITHHELD or failure.code in _codes(FedmapError)
    demand(known, "the failure has an unknown code")
    demand(
        len(failure.reason) <= MOST_REASON and _is_plain(failure.reason),
        f"the reason of the failure is longer than {MOST_REASON:,} characters or has control characters",
    )
    return CheckedAnswer("failed")


def check_rows(plan: StudyPlan, statistics: StatisticsAnswer) -> None:
    """As many rows as the plan asks for and a site can have, and a digest of the model's inputs."""
    least = plan.limits.min_rows
    demand(
        least <= statistics.rows <= MOST_ROWS,
        f"the statistics are not of {least:,} to {MOST_ROWS:,} rows",
        "the plan's limits.min_rows holds for every site: take part when there are enough rows",
    )
    demand(is_digest(statistics.layout_digest), "the digest of the model's inputs is none")


def _check_fit(
    plan: StudyPlan,
    model: Model,
    task: OpenTask,
    fit: FitAnswer,
    tensors: Path | None,
    limits: GateLimits,
    cohort_norm: float | None,
) -> CheckedAnswer:
    losses = [loss for loss in (fit.loss, fit.validation_loss) if loss is not None]
    demand(all(map(math.isfinite, losses)), "a loss of the fit is not a finite number", _DIVERGED)
    demand(fit.epochs <= plan.training.epochs, "the fit has more epochs than the plan")
    _check_scores(plan, fit.validation_scores, (PERSONAL, GLOBAL))
    together = (fit.log_omega is None) == (tensors is None)
    demand(together, "parameters and their weight must come together, or neither")
    if tensors is None or fit.log_omega is None:
        return CheckedAnswer("abstained")
    _check_log_omega(plan, fit.log_omega, limits)
    norm = parameters_norm(model.network, tensors)
    reference = _fresh_norm(model) if cohort_norm is None else cohort_norm
    _check_norm(norm, max(1.0, reference) if task.round <= 1 else reference, limits)
    return CheckedAnswer("accepted", norm)


def _check_log_omega(plan: StudyPlan, log_omega: float, limits: GateLimits) -> None:
    demand(math.isfinite(log_omega), "log ω is not a finite number", _DIVERGED)
    demand(
        abs(log_omega) <= limits.max_log_omega,
        f"log ω is beyond ±{limits.max_log_omega:g}, the aggregator's limit",
        _DIVERGED,
    )
    rule = plan.aggregation.weighting
    # −L − R and its relatives are at most zero, since neither a loss nor a penalty is negative; log N is not.
    low, high = (0.0, math.log(MOST_ROWS)) if rule == "sample_count" else (-math.inf, _ROUNDING)
    demand(low <= log_omega <= high, f"log ω is none that the plan's weighting {rule} can give")


def _check_rule(plan: StudyPlan, rule: RuleAnswer, tensors: Path | None) -> None:
    demand(rule.validation_rows <= MOST_ROWS, f"the rule is of more than {MOST_ROWS:,} rows")
    terms, reference = terms_of(plan, rule, tensors)
    if terms.baseline is not None:
        check_baseline(terms.baseline)
    if reference is not None:
        check_reference_terms(plan, reference, MOST_ROWS)


def _check_groups(plan: StudyPlan, evaluation: EvaluationAnswer) -> None:
    """Each has one score: the plan's metric of the global model."""
    for group in evaluation.subgroups:
        score = group.score or Score()
        ours = score.metric == plan.task.metric
        demand(ours, "a group is scored by another metric than the plan's")
        _check_scores(plan, [score], (GLOBAL,))


def _check_scores(plan: StudyPlan, scores: Iterable[Score], models: Collection[str]) -> None:
    known = metric_names(plan.task.kind)
    seen: set[tuple[str, str]] = set()
    for score in scores:
        demand(score.metric in known, f"a score is of no metric of a {plan.task.kind} task")
        result_of(score)
        demand(score.model in models, "a score is of a model that this task does not score")
        demand(_is_plain(score.note), f"the note on {score.metric} has control characters")
        demand((score.model, score.metric) not in seen, f"{score.metric} was scored twice")
        seen.add((score.model, score.metric))


def _check_norm(norm: float, reference: float, limits: GateLimits) -> None:
    demand(
        norm <= limits.norm_factor * reference,
        f"the parameters' norm is over {limits.norm_factor:g} times that of the cohort",
        _DIVERGED,
    )


def _norm(theta: Tensor) -> float:
    return float(torch.linalg.vector_norm(theta.double()))


def _fresh_norm(model: Model) -> float:
    """Of any freshly drawn model: hardly depends on the seed."""
    return _fresh_norm_of(model.network)


@lru_cache(maxsize=16)
def _fresh_norm_of(network: Network) -> float:
    return _norm(network.initialise(0))


def _codes(error: type[FedmapError]) -> set[str]:
    """Of an error class and all below it."""
    return {error.code}.union(*(_codes(below) for below in error.__subclasses__()))


def _is_plain(text: str) -> bool:
    """Nothing that moves a terminal's cursor: these texts are shown to the operator."""
    return all(character.isprintable() or character == "\n" for character in text)
