"""A study driven by hand: short words for the events that the tests of the coordinator send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedmap.study.course import events
from fedmap.study.course.coordinator import advance
from fedmap.study.course.events import Decision, Event
from fedmap.study.course.questions import current_step, tasks_for
from fedmap.study.course.state import AnswerStatus, OpenTask, StudyState, new_study

DEADLINE_MS = 60_000


_STATUS: Mapping[str, AnswerStatus] = {"+": "accepted", "0": "abstained", "!": "failed", "?": "rejected"}


@dataclass
class Course:
    """The state so far, the clock, and the decisions of the last event."""

    state: StudyState
    now: int = 1_000_000
    last: tuple[Decision, ...] = field(default=())

    def send(self, event: Event) -> tuple[Decision, ...]:
        step = advance(self.state, event)
        self.state, self.last = step.state, step.decisions
        return step.decisions

    @property
    def task(self) -> OpenTask:
        assert self.state.task is not None, "no task is open"
        return self.state.task

    def approve(self, *sites: str) -> None:
        for site in sites:
            self.send(events.Approved(self.now, site))

    def start(self) -> tuple[Decision, ...]:
        return self.send(events.Started(self.now))

    def answer(self, *sites: str, status: AnswerStatus = "accepted", norm: float | None = None) -> None:
        for site in sites:
            attempt = self.task.attempt
            self.send(events.Answered(self.now, site, self.task.id, attempt, status, norm, "a reason"))

    def compute(self) -> tuple[Decision, ...]:
        assert self.state.computing
        return self.send(events.Computed(self.now, self.task.id, f"prior-of-{self.task.id}", 10))

    def silent(self, *sites: str) -> None:
        for site in sites:
            self.send(events.Silent(self.now, site))

    def heard(self, *sites: str) -> None:
        for site in sites:
            self.send(events.Heard(self.now, site))

    def leave(self, *sites: str) -> None:
        for site in sites:
            self.send(events.Left(self.now, site, "left by its own wish"))

    def pass_time(self, ms: int) -> tuple[Decision, ...]:
        self.now += ms
        return self.send(events.Tick(self.now))

    def pass_deadline(self) -> tuple[Decision, ...]:
        return self.pass_time(max(0, self.task.deadline_at - self.now))

    def answer_all(self) -> None:
        """Everybody who has the task to do does it."""
        for site in sorted(self.state.members):
            if tasks_for(self.state, site) is not None:
                self.answer(site)

    def play(self, script: str) -> None:
        """Words in turn: a+ accepted, a0 abstained, a! failed, a? refused, ~a silent, ^a heard, -a left, |
        the deadline passes, p paused, r resumed.
        """
        for word in script.split():
            first, rest = word[0], word[1:]
            match word:
                case "|":
                    self.pass_deadline()
                case "p":
                    self.send(events.Paused(self.now))
                case "r":
                    self.send(events.Resumed(self.now))
                case _ if first in "~^-":
                    {"~": self.silent, "^": self.heard, "-": self.leave}[first](rest)
                case _:
                    self.answer(first, status=_STATUS[rest])

    def go_to(self, step: str) -> Course:
        """Every site does as it is asked until this task is open."""
        while current_step(self.state) != step or self.state.computing:
            if self.state.computing:
                self.compute()
            else:
                self.answer_all()
        return self


def course(*sites: str, quorum: int = 2, rounds: int = 2) -> Course:
    """A study up for approval."""
    state = new_study(
        "study", quorum=quorum, rounds=rounds, seed=7, deadline_seconds=DEADLINE_MS / 1000, sites=sites
    )
    return Course(state)


def started(*sites: str, quorum: int = 2, rounds: int = 2) -> Course:
    """A study that all of its sites approved, with statistics open."""
    made = course(*sites, quorum=quorum, rounds=rounds)
    made.approve(*sites)
    made.start()
    return made
