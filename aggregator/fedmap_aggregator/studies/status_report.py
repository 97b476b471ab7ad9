"""Where a study stands, as the message that operators get: made from its state, its stored results and
answers.

Reads nothing by itself and changes nothing. Scores and reasons come from sites and passed the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedmap.contract.v1 import operator_pb2 as pb
from fedmap.study.course.questions import answer_of, is_late, norm_of, waiting_for
from fedmap_aggregator.course.computation import message_of, step_of
from fedmap_aggregator.store import AnswerRow, RefusalRow, ResultRow, SiteRow
from fedmap_aggregator.studies.liveness import Presence
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
) -> pb.StudyStatus:
    """The whole status of one study."""
    state, task = study.state, study.state.task
    status = pb.StudyStatus(
        study=state.study,
        title=study.terms.plan.study.title,
        phase=state.phase,
        paused=state.paused,
        round=state.round,
        rounds=state.rounds,
        computing=state.computing,
        waiting_for=waiting_for(state, now),
        terms_digest=study.terms.digest,
        prior_digest=state.prior_digest,
        metric=study.terms.plan.task.metric,
        quorum=state.quorum,
        purged_unix_ms=state.purged_at or 0,
    )
    if task is not None:
        status.task_id = task.id
        status.opened_unix_ms = task.opened_at
        status.deadline_unix_ms = task.deadline_at
    status.members.extend(
        member_status(study, site, sites[site].region if site in sites else "", presence.get(site), now)
        for site in sorted(state.members)
    )
    status.history.extend(_history(records.results))
    status.scores.extend(_scores(records.evaluations, sites))
    status.refusals.extend(
        pb.Refusal(site=r.site, task_id=r.task, code=r.code, reason=r.reason, at_unix_ms=r.at)
        for r in records.refusals
    )
    return status


def member_status(study: Study, site: str, region: str, seen: Presence | None, now: int) -> pb.MemberStatus:
    """Where one member stands."""
    state, member = study.state, study.state.members[site]
    status = pb.MemberStatus(
        site=site,
        region=region,
        membership=member.membership,
        reason=member.reason,
        answer=answer_of(state, site),
        late=is_late(state, site, now),
        silent=site in state.silent,
    )
    if (norm := norm_of(state, site)) is not None:
        status.norm = norm
    if seen is not None and seen.heard_at and seen.progress.study in ("", state.study):
        status.stage = seen.progress.stage
        status.progress = seen.progress.share
    return status


def _history(results: Iterable[ResultRow]) -> Iterable[pb.RoundStatus]:
    for row in results:
        step = step_of(row)
        summary = step.summary
        if summary is None:
            continue
        closed = pb.RoundStatus(
            round=summary.round,
            answered=summary.answered,
            absent=step.absent,
            members=summary.members,
            penalty=summary.penalty,
            largest_weight=summary.largest_weight,
            closed_unix_ms=row.closed_at,
        )
        if summary.loss is not None:
            closed.loss = summary.loss
        if summary.validation_loss is not None:
            closed.validation_loss = summary.validation_loss
        if summary.personal_metric is not None:
            closed.personal_metric = summary.personal_metric
        if summary.global_metric is not None:
            closed.global_metric = summary.global_metric
        yield closed


def _scores(evaluations: Iterable[AnswerRow], sites: Mapping[str, SiteRow]) -> Iterable[pb.SiteScore]:
    for row in evaluations:
        if row.status != "accepted":
            continue
        for score in message_of(row).evaluation.scores:
            scored = pb.SiteScore(
                site=row.site,
                region=sites[row.site].region if row.site in sites else "",
                model=score.model,
                metric=score.metric,
                note=score.note,
            )
            if score.HasField("value"):
                scored.value = score.value
            yield scored
