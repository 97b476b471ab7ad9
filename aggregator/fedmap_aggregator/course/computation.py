"""From a closed task to its result: which stored answers go to the estimation process, and what its
reply means.

Values in, values out: reading the rows, submitting the request and storing the result are the service's.
What is kept of a step is one `StepResult` as JSON, which the operator's status is made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer, FitAnswer, RuleAnswer, StatisticsAnswer
from fedmap.errors import StorageError
from fedmap.study.answers import C, content_as
from fedmap.study.course.events import Compute, Computed
from fedmap.study.course.questions import participants
from fedmap.study.course.state import StudyState
from fedmap.study.record import PriorMade, RoundSummary, summary_of
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.course.messages import (
    EstimatedPrior,
    EstimatedRound,
    InitialPrior,
    NextPrior,
    PooledRule,
    PooledStatistics,
    PoolRule,
    PoolStatistics,
    Request,
    Result,
    SiteRule,
    SiteStatistics,
    SiteUpdate,
)
from fedmap_aggregator.store import AnswerRow, ResultRow


@dataclass(frozen=True)
class StepResult:
    """What is kept of one closed step."""

    scaler_digest: str = ""  # statistics
    rows: int = 0  # statistics: pooled over sites
    input_names: tuple[str, ...] = ()  # statistics: of the model's inputs, where agents sent them
    reference_digest: str = ""  # rule: the pooled reference, as a blob; empty: no site sent terms
    weights: Mapping[str, float] = field(default_factory=dict)  # fit: ω̄ by site
    absent: tuple[str, ...] = ()  # fit: those of them that count with an earlier update, sorted
    summary: RoundSummary | None = None  # fit


_STEP: TypeAdapter[StepResult] = TypeAdapter(StepResult)


def step_to_json(step: StepResult) -> str:
    return _STEP.dump_json(step).decode()


def step_of(row: ResultRow) -> StepResult:
    """What was kept of a step; StorageError where the row was changed from outside."""
    try:
        return _STEP.validate_json(row.content_json)
    except ValidationError as error:
        raise StorageError(
            f"the stored result of {row.task} of {row.study} cannot be read",
            hint="the database was changed by hand or by another version: restore it from a backup",
        ) from error


def request_for(
    terms: StudyTerms,
    state: StudyState,
    compute: Compute,
    answers: Sequence[AnswerRow],
    results: Iterable[ResultRow],
    absent: Sequence[AnswerRow] = (),
) -> Request | None:
    """What to ask of the estimation process; None where the step needs no computing (evaluate).

    `absent`: what those sent last who count without an answer (`count_without_answer`).
    """
    rows = {row.site: row for row in answers if row.site in compute.sites and row.status == "accepted"}
    missing = [site for site in compute.sites if site not in rows]
    if missing:
        raise StorageError(
            f"{compute.task_id} of {state.study} counts {len(missing)} answer(s) that are not stored",
            hint="the database was changed by hand, or is an older copy: restore it from a backup",
        )
    stored = [rows[site] for site in compute.sites]
    text = terms.to_json()
    match compute.kind:
        case "statistics":
            return PoolStatistics(text, tuple(map(_site_statistics, stored)))
        case "initialise":
            return InitialPrior(text, _scaler(state, results), stored[0].tensors_digest)
        case "fit":
            updates = tuple(map(_site_update, (*stored, *absent)))
            return NextPrior(text, compute.round, state.prior_digest, updates)
        case "rule":
            names = next((step_of(row).input_names for row in results if row.task == "statistics"), ())
            return PoolRule(text, tuple(map(_site_rule, stored)), names)
        case "evaluate":
            return None


def outcome_of(
    state: StudyState, compute: Compute, result: Result | None, answers: Sequence[AnswerRow], at: int
) -> tuple[Computed, ResultRow]:
    """The event that moves the study on, and the row that is stored with it."""
    step, event = StepResult(), Computed(at, compute.task_id)
    match result:
        case PooledStatistics():
            step = StepResult(
                scaler_digest=result.scaler_digest,
                rows=result.rows,
                input_names=_input_names(compute, result, answers),
            )
            event = Computed(at, compute.task_id, exclude=result.excluded)
        case EstimatedPrior():
            event = Computed(at, compute.task_id, result.prior_digest, result.prior_size)
        case EstimatedRound():
            step = StepResult(
                weights=result.weights,
                absent=tuple(sorted(result.weights.keys() - set(compute.sites))),
                summary=_summary(state, compute, result, answers),
            )
            event = Computed(at, compute.task_id, result.prior_digest, result.prior_size)
        case PooledRule():
            step = StepResult(reference_digest=result.reference_digest)
            event = Computed(at, compute.task_id, rule=result.rule)
        case None:
            pass
    row = ResultRow(state.study, compute.task_id, event.prior_digest, step_to_json(step), at)
    return event, row


def told_in(row: AnswerRow, kind: type[C]) -> C:
    """What the site told, in an answer that the gate let in."""
    return content_as(kind, wire.read(Answer, row.answer))


def rounds_before(number: int) -> tuple[str, ...]:
    """The tasks of all rounds before this one, newest first."""
    return tuple(f"round-{earlier}" for earlier in range(number - 1, 0, -1))


def count_without_answer(terms: StudyTerms, state: StudyState, compute: Compute) -> tuple[str, ...]:
    """Sites that count with what they sent last: in a consensus round, whoever takes part and is missing."""
    if compute.kind != "fit" or not terms.plan.settings.is_consensus(compute.round, terms.rounds):
        return ()
    return tuple(site for site in participants(state) if site not in compute.sites)


def _scaler(state: StudyState, results: Iterable[ResultRow]) -> str:
    for row in results:
        if row.task == "statistics":
            return step_of(row).scaler_digest
    raise StorageError(
        f"the pooled statistics of {state.study} are not stored",
        hint="the database was changed by hand, or is an older copy: restore it from a backup",
    )


def _site_statistics(row: AnswerRow) -> SiteStatistics:
    told = told_in(row, StatisticsAnswer)
    return SiteStatistics(row.site, told.rows, told.layout_digest, row.tensors_digest)


def _site_update(row: AnswerRow) -> SiteUpdate:
    log_omega = told_in(row, FitAnswer).log_omega
    assert log_omega is not None  # an accepted fit has one
    return SiteUpdate(row.site, log_omega, row.tensors_digest)


def _site_rule(row: AnswerRow) -> SiteRule:
    told = told_in(row, RuleAnswer)
    return SiteRule(
        row.site,
        told.threshold,
        told.validation_rows,
        told.joined_intervals,
        row.tensors_digest,
        told.reference,
    )


def _input_names(compute: Compute, result: PooledStatistics, answers: Sequence[AnswerRow]) -> tuple[str, ...]:
    """Of the sites that were pooled, which have them all in common."""
    for row in answers:
        if row.status == "accepted" and row.site in compute.sites and row.site not in result.excluded:
            names = told_in(row, StatisticsAnswer).input_names
            if names:
                return names
    return ()


def _summary(
    state: StudyState, compute: Compute, result: EstimatedRound, answers: Sequence[AnswerRow]
) -> RoundSummary:
    fits = [told_in(row, FitAnswer) for row in answers if row.status in ("accepted", "abstained")]
    members = sum(member.membership == "approved" for member in state.members.values())
    made = PriorMade(result.weights, result.penalty, result.convex_penalty)
    return summary_of(compute.round, members, len(compute.sites), made, fits)
