"""Where a study stands, as the message that operators get: made from its state, its stored results and
answers.

Reads nothing by itself and changes nothing. Scores and reasons come from sites and passed the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedmap.contract.v1.values import (
    EvaluationAnswer,
    MemberStatus,
    Refusal,
    RoundStatus,
    SiteScore,
    StudyStatus,
)
from fedmap.study.course.questions import answer_of, is_late, norm_of, waiting_for
from fedmap_aggregator.course.computation import step_of, told_in
from fedmap_aggregator.store import AnswerRow, RefusalRow, ResultRow, SiteRow
from fedmap_aggregator.studies.liveness import Presence, Progress
from fedmap_aggregator.studies.service import Study

MOST_REFUSALS = 50


@dataclass(frozen=True)
class StudyRecords:
    """What the store has of one study, besides its state."""

    results: tuple[ResultRow, ...]
    evaluations: tuple[AnswerRow, ...]
    refusals: tuple[RefusalRow, ...]  # the newest first


def study_status(
    study: Study,
    records: StudyRecords,
    sites: Mapping[str, SiteRow],
    presence: Mapping[str, Presence],
    now: int,
) -> StudyStatus:
    """The whole status of one study."""
    state, task = study.state, study.state.task
    return StudyStatus(
        study=state.study,
        title=study.terms.plan.study.title,
        phase=state.phase,
        paused=state.paused,
        round=state.round,
        rounds=state.rounds,
        task_id="" if task is None else task.id,
        computing=state.computing,
        opened_unix_ms=0 if task is None else task.opened_at,
        deadline_unix_ms=0 if task is None else task.deadline_at,
        waiting_for=waiting_for(state, now),
        terms_digest=study.terms.digest,
        members=tuple(
            member_status(study, site, sites[site].region if site in sites else "", presence.get(site), now)
            for site in sorted(state.members)
        ),
        history=tuple(_history(records.results)),
        prior_digest=state.prior_digest,
        metric=study.terms.plan.task.metric,
        scores=tuple(_scores(records.evaluations, sites)),
        quorum=state.quorum,
        refusals=tuple(Refusal(r.site, r.task, r.code, r.reason, r.at) for r in records.refusals),
        purged_unix_ms=state.purged_at or 0,
    )


def member_status(study: Study, site: str, region: str, seen: Presence | None, now: int) -> MemberStatus:
    """Where one member stands."""
    state, member = study.state, study.state.members[site]
    here = seen is not None and seen.heard_at and seen.progress.study in ("", state.study)
    doing = seen.progress if seen is not None and here else Progress(stage="")
    return MemberStatus(
        site=site,
        region=region,
        membership=member.membership,
        reason=member.reason,
        answer=answer_of(state, site),
        late=is_late(state, site, now),
        silent=site in state.silent,
        stage=doing.stage,
        progress=doing.share,
        norm=norm_of(state, site),
    )


def _history(results: Iterable[ResultRow]) -> Iterable[RoundStatus]:
    for row in results:
        step = step_of(row)
        if step.summary is not None:
            yield RoundStatus(**vars(step.summary), absent=step.absent, closed_unix_ms=row.closed_at)


def _scores(evaluations: Iterable[AnswerRow], sites: Mapping[str, SiteRow]) -> Iterable[SiteScore]:
    for row in evaluations:
        if row.status != "accepted":
            continue
        region = sites[row.site].region if row.site in sites else ""
        for score in told_in(row, EvaluationAnswer).scores:
            yield SiteScore(row.site, region, score.model, score.metric, score.value, score.note)
