"""What the store keeps of a study, as values: of one closed step as JSON, of all of it as a `StudyRecord`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer, EvaluationAnswer, StatisticsAnswer
from fedmap.errors import StorageError
from fedmap.files.durable import storage_error
from fedmap.shift.reference import Reference
from fedmap.study.answers import C, content_as
from fedmap.study.course.state import StudyState
from fedmap.study.record import RefusalRecord, RoundRecord, RoundSummary, StudyRecord
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.store import AnswerRow, BlobStore, ResultRow, Transaction

MOST_REFUSALS = 1_000_000


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


def told_in(row: AnswerRow, kind: type[C]) -> C:
    """What the site told, in an answer that the gate let in."""
    return content_as(kind, wire.read(Answer, row.answer))


def newest_updates(
    transaction: Transaction, study: str, number: int, sites: Collection[str]
) -> tuple[AnswerRow, ...]:
    """What each of these sites sent last, in the rounds before this one."""
    rounds = tuple(f"round-{earlier}" for earlier in range(number - 1, 0, -1))
    return transaction.answers.newest_accepted(study, rounds, sites)


def study_record(
    transaction: Transaction,
    terms: StudyTerms,
    state: StudyState,
    refusals: int = MOST_REFUSALS,
    blobs: BlobStore | None = None,
) -> StudyRecord:
    """One study as of one moment, with its newest refusals. What a release alone tells needs its blobs."""
    name = state.study
    results = transaction.results.list(name)
    steps = {row.task: step_of(row) for row in results}
    pooled, ruled = steps.get("statistics", StepResult()), steps.get("rule", StepResult())
    return StudyRecord(
        terms=terms,
        regions={row.name: row.region for row in transaction.sites.list()},
        input_names=pooled.input_names,
        statistics=_told(transaction, name, "statistics", StatisticsAnswer) if blobs is not None else {},
        rounds=tuple(
            RoundRecord(step.weights, step.absent, step.summary, row.closed_at, row.prior_digest)
            for row in results
            if (step := steps[row.task]).summary is not None
        ),
        rule=state.rule,
        reference=_reference(blobs, ruled.reference_digest, name) if blobs is not None else None,
        evaluations=_told(transaction, name, "evaluate", EvaluationAnswer),
        refusals=tuple(
            RefusalRecord(row.site, row.task, row.code, row.reason, row.at)
            for row in transaction.refusals.newest(name, refusals)
        ),
    )


def _told(transaction: Transaction, study: str, task: str, kind: type[C]) -> Mapping[str, C]:
    rows = transaction.answers.list(study, task)
    return {row.site: told_in(row, kind) for row in rows if row.status == "accepted"}


def _reference(blobs: BlobStore, digest: str, study: str) -> Reference | None:
    if not digest:
        return None
    path = blobs.existing(digest)
    try:
        return Reference.model_validate_json(path.read_bytes())
    except OSError as error:
        raise storage_error(error, path) from error
    except ValidationError as error:
        raise StorageError(
            f"the stored reference of {study} cannot be read",
            hint="restore the state folder from a backup; the blob was changed, or is of another version",
        ) from error
