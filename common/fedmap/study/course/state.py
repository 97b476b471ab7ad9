"""Where one study stands, as a value: it goes to the store as JSON and comes back the same.

What may follow what is in `coordinator`, what can be asked of a state in `questions`. The
answers (digests, tensors, scores) stay in the store: here is only what decides when a task closes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedmap.contract.v1.values import GlobalRule
from fedmap.errors import StorageError

Membership = Literal["invited", "approved", "left", "excluded"]
Phase = Literal[
    "approvals", "statistics", "initialisation", "rounds", "rule", "evaluation", "complete", "aborted"
]
TaskKind = Literal["statistics", "initialise", "fit", "rule", "evaluate"]
AnswerStatus = Literal["accepted", "abstained", "failed", "rejected"]

KIND_OF_PHASE: Mapping[Phase, TaskKind] = {
    "statistics": "statistics",
    "initialisation": "initialise",
    "rounds": "fit",
    "rule": "rule",
    "evaluation": "evaluate",
}

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Member:
    """One site of the study. Only approved members take part."""

    membership: Membership
    reason: str = ""  # of leaving or exclusion

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class TaskAnswer:
    """What a site's newest answer to the open task came to."""

    status: AnswerStatus
    attempt: int  # of the task that it answers
    norm: float | None = None  # of the parameters; fits only
    reason: str = ""  # of failing or being rejected

    __pydantic_config__ = _STRICT

    @property
    def stands(self) -> bool:
        """Accepted and abstained are final; failed and rejected may be made good."""
        return self.status in ("accepted", "abstained")


@dataclass(frozen=True)
class OpenTask:
    """The one task of the study: open to answers or, once the state is computing, closed."""

    id: str  # statistics, initialise, round-1 …, rule, evaluate
    kind: TaskKind
    round: int  # fits only, else 0
    opened_at: int  # unix ms, of the current attempt
    deadline_at: int  # unix ms
    attempt: int  # from 1
    asked: tuple[str, ...]  # sorted; for initialise in the order of drawing
    answers: Mapping[str, TaskAnswer] = field(default_factory=dict)

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class StudyState:
    """Immutable: an event makes a new one. Without a task it is at rest: not started, paused or over."""

    study: str
    quorum: int
    rounds: int
    seed: int
    deadline_seconds: float
    members: Mapping[str, Member]
    phase: Phase = "approvals"
    rounds_done: int = 0  # rounds whose prior is computed
    paused_at: int | None = None  # unix ms
    task: OpenTask | None = None
    computing: bool = False  # the task is closed and its result is awaited
    problem: str = ""  # why the last computation failed; the study is paused until somebody resumes it
    prior_digest: str = ""
    prior_size: int = 0
    silent: tuple[str, ...] = ()  # sorted; no sign of life within the limit
    cohort_norm: float | None = None  # median norm of the answers accepted in the last closed round
    rule: GlobalRule | None = None
    purged_at: int | None = None  # unix ms; what the sites sent and what was computed is deleted

    __pydantic_config__ = _STRICT

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    @property
    def over(self) -> bool:
        return self.phase in ("complete", "aborted")

    @property
    def round(self) -> int:
        """The round that is open, else the last one computed; 0 before the first."""
        return (self.task.round if self.task is not None else 0) or self.rounds_done


def new_study(
    study: str, *, quorum: int, rounds: int, seed: int, deadline_seconds: float, sites: Iterable[str]
) -> StudyState:
    """A study up for approval by the invited sites."""
    return StudyState(
        study=study,
        quorum=quorum,
        rounds=rounds,
        seed=seed,
        deadline_seconds=float(deadline_seconds),
        members={site: Member("invited") for site in sorted(sites)},
    )


def without_content(state: StudyState, at: int) -> StudyState:
    """An ended study of which only the record is left: who took part, and how far it came."""
    return replace(
        state,
        task=None,
        computing=False,
        prior_digest="",
        prior_size=0,
        silent=(),
        cohort_norm=None,
        rule=None,
        purged_at=at,
    )


def with_members(state: StudyState, changed: Mapping[str, Member]) -> StudyState:
    return replace(state, members={**state.members, **changed})


_STATE = TypeAdapter(StudyState)


def state_to_json(state: StudyState) -> str:
    """Canonical: equal states give equal text."""
    return json.dumps(_STATE.dump_python(state, mode="json"), sort_keys=True, separators=(",", ":"))


def state_from_json(text: str) -> StudyState:
    """The state that `state_to_json` wrote. A text that it cannot have written is a fault of the store."""
    try:
        return _STATE.validate_json(text)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole text"
        raise StorageError(
            f"the stored state of a study cannot be read: {error.error_count()} problem(s), first at {where}",
            hint="the database was changed by hand or by another version: restore it from a backup",
        ) from error
