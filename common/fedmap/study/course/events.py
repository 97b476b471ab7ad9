"""What happens to a study (events) and what the service has to do about it (decisions). Values only.

Every event carries `at`, the aggregator's clock in unix ms: the coordinator has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedmap.contract.v1.values import GlobalRule
from fedmap.study.course.state import AnswerStatus, OpenTask, StudyState, TaskKind


@dataclass(frozen=True)
class Approved:
    """A site takes part under the study's terms."""

    at: int
    site: str


@dataclass(frozen=True)
class Left:
    """A site takes no further part, by its own wish or because it was revoked."""

    at: int
    site: str
    reason: str


@dataclass(frozen=True)
class Started:
    """The operator starts the study."""

    at: int


@dataclass(frozen=True)
class Paused:
    """The operator holds the study."""

    at: int


@dataclass(frozen=True)
class Resumed:
    """The operator lets a paused study go on."""

    at: int


@dataclass(frozen=True)
class Aborted:
    """The operator ends the study for good."""

    at: int


@dataclass(frozen=True)
class Answered:
    """A site's answer has passed the gate, or has not, and is stored either way."""

    at: int
    site: str
    task_id: str
    attempt: int
    status: AnswerStatus
    norm: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Silent:
    """A site that was heard before has given no sign of life within the limit."""

    at: int
    site: str


@dataclass(frozen=True)
class Heard:
    """A sign of life."""

    at: int
    site: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: int


@dataclass(frozen=True)
class Computed:
    """The result of a closed task is stored."""

    at: int
    task_id: str
    prior_digest: str = ""  # empty: this step makes no prior
    prior_size: int = 0
    exclude: Mapping[str, str] = field(default_factory=dict)  # site → why it cannot take part
    rule: GlobalRule | None = None


@dataclass(frozen=True)
class ComputeFailed:
    """The result of a closed task could not be computed, and trying again at once would not help."""

    at: int
    task_id: str
    reason: str


Event = (
    Approved
    | Left
    | Started
    | Paused
    | Resumed
    | Aborted
    | Answered
    | Silent
    | Heard
    | Tick
    | Computed
    | ComputeFailed
)


@dataclass(frozen=True)
class Compute:
    """Work out the result of a closed task from these answers, then send Computed or ComputeFailed."""

    task_id: str
    kind: TaskKind
    round: int
    sites: tuple[str, ...]  # accepted ones, sorted; for initialise exactly one


@dataclass(frozen=True)
class TaskOpened:
    """A task is there to be fetched: a new one, a new attempt, or one more site drawn for it."""

    task: OpenTask


@dataclass(frozen=True)
class Finished:
    """The study is over."""

    phase: Literal["complete", "aborted"]


Decision = Compute | TaskOpened | Finished


@dataclass(frozen=True)
class Transition:
    """The state after an event. `state` is the very object that went in when the event changed nothing."""

    state: StudyState
    decisions: tuple[Decision, ...] = ()
