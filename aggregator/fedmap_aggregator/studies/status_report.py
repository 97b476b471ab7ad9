"""Where a study stands, as the value that operators get: made from its state and its record.

Reads nothing by itself and changes nothing. Scores and reasons come from sites and passed the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedmap.contract.v1.values import MemberStatus, StudyStatus
from fedmap.study.course.questions import answer_of, is_late, norm_of, waiting_for
from fedmap.study.record import StudyRecord, status_of
from fedmap_aggregator.studies.liveness import Presence, Progress
from fedmap_aggregator.studies.service import Study

MOST_REFUSALS = 50


def study_status(
    study: Study, record: StudyRecord, presence: Mapping[str, Presence], now: int
) -> StudyStatus:
    """The whole status of one study."""
    state, task = study.state, study.state.task
    return replace(
        status_of(record),
        phase=state.phase,
        paused=state.paused,
        round=state.round,
        rounds=state.rounds,
        task_id="" if task is None else task.id,
        computing=state.computing,
        opened_unix_ms=0 if task is None else task.opened_at,
        deadline_unix_ms=0 if task is None else task.deadline_at,
        waiting_for=waiting_for(state, now),
        members=tuple(
            member_status(study, site, record.regions.get(site, ""), presence.get(site), now)
            for site in sorted(state.members)
        ),
        prior_digest=state.prior_digest,
        quorum=state.quorum,
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
