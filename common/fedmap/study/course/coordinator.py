"""The course of a study as a pure state machine: a state and an event in, the next state and decisions out.

(1) A study starts once, with at least the quorum of approved sites. Who has not approved by then is out.
(2) The steps have one order and never go back: statistics, initialise, round 1 … R, rule, evaluate. At most
    one task is open.
(3) A site that left or was excluded is on no wait list; its answer to an open task is dropped.
(4) A silent site is not waited for. Only statistics wait for it, until the deadline: who misses them is out.
(5) A task closes when nobody is waited for, or at its deadline, and in both cases only with the quorum. Below
    quorum it waits, and closes the moment the quorum is met. Rule and evaluation need one answer at the
    deadline.
(6) When the deadline is past and the quorum is not met, live sites that failed or were rejected are asked
    again: attempt + 1 and a new deadline. What was accepted stands, and who is late may still answer.
(7) A failed or rejected answer may be made good while the task is open. An accepted or abstained one stays.
(8) Who has no accepted statistics when these close is excluded, with the reason.
(9) Initialise asks one site, drawn by the seed. When it fails, leaves, falls silent or is late, another live
    one is drawn; when none is left, one of the failed ones, at the deadline, as attempt + 1. The first
    accepted model closes the task.
(10) A closed task is computed. Answers to it are stale; only its own result moves the study on.
(11) Paused: answers and results are taken, nothing closes or opens. Resume moves the deadline by the pause. A
    computation that failed pauses the study, and resume computes again; without the answer of a site that
    has left meanwhile, for that may have been the cause: then the task is open again.
(12) Complete and aborted are final.
(13) A repeated event changes nothing.

No clock, files, threads or logging: the service has those. When a task closes is in `closing`,
what sites and computations hand in is in `intake`.
"""

from __future__ import annotations

from dataclasses import replace

from fedmap.errors import StateError
from fedmap.study.course import events
from fedmap.study.course.closing import settle
from fedmap.study.course.events import Decision, Event, Finished, TaskOpened, Transition
from fedmap.study.course.intake import take_answer, take_failure, take_result
from fedmap.study.course.questions import due_compute, member_of, name_list, participants
from fedmap.study.course.state import Member, OpenTask, StudyState, with_members


def advance(state: StudyState, event: Event) -> Transition:
    """Apply one event. A refusal is a typed error, and then nothing has changed."""
    after = settle(_apply(state, event), event.at)
    return Transition(state, ()) if after is state else Transition(after, _decisions(state, after))


def _apply(state: StudyState, event: Event) -> StudyState:
    match event:
        case events.Approved():
            return _approve(state, event.site)
        case events.Left():
            return _leave(state, event.site, event.reason)
        case events.Started():
            return _start(state)
        case events.Paused():
            return _pause(state, event.at)
        case events.Resumed():
            return _resume(state, event.at)
        case events.Aborted():
            return _abort(state)
        case events.Answered():
            return take_answer(state, event)
        case events.Silent():
            return _mark_silent(state, event.site, True)
        case events.Heard():
            return _mark_silent(state, event.site, False)
        case events.Computed():
            return take_result(state, event)
        case events.ComputeFailed():
            return take_failure(state, event)
        case events.Tick():
            return state


def _decisions(before: StudyState, after: StudyState) -> tuple[Decision, ...]:
    """What a change of state asks of the service."""
    found: list[Decision] = []
    compute = due_compute(after)
    if compute is not None and compute != due_compute(before):
        found.append(compute)
    if after.task is not None and not after.computing and _asks_more(before.task, after.task):
        found.append(TaskOpened(after.task))
    if (after.phase == "complete" or after.phase == "aborted") and not before.over:
        found.append(Finished(after.phase))
    return tuple(found)


def _asks_more(before: OpenTask | None, after: OpenTask) -> bool:
    if before is None or (before.id, before.attempt) != (after.id, after.attempt):
        return True
    return bool(set(after.asked) - set(before.asked))


def _approve(state: StudyState, site: str) -> StudyState:
    member = member_of(state, site)
    if member.membership == "approved":
        return state  # (13)
    if state.phase != "approvals":  # (1)
        raise StateError(
            f"the study {state.study} has started without {site}",
            hint="the operator can create another study with this site",
        )
    return with_members(state, {site: Member("approved")})


def _leave(state: StudyState, site: str, reason: str) -> StudyState:
    if member_of(state, site).membership in ("left", "excluded"):
        return state  # (13)
    state = with_members(state, {site: Member("left", reason)})
    if state.task is None or (state.computing and not state.problem):
        return state
    asked = tuple(s for s in state.task.asked if s != site)
    answers = {s: answer for s, answer in state.task.answers.items() if s != site}
    task = replace(state.task, asked=asked, answers=answers)  # (3)
    return replace(state, task=task, computing=state.computing and answers == state.task.answers)  # (11)


def _start(state: StudyState) -> StudyState:
    if state.phase == "aborted":
        raise _over(state)  # (12)
    if state.phase != "approvals":
        return state  # (13)
    missing = tuple(sorted(s for s, m in state.members.items() if m.membership == "invited"))
    approved = participants(state)
    if len(approved) < state.quorum:  # (1)
        raise StateError(
            f"{len(approved)} site(s) have approved the study {state.study}, the quorum is {state.quorum}",
            hint=f"wait for approval by {name_list(missing)}"
            if missing
            else "create a study with more sites",
        )
    reason = "had not approved when the study started"
    state = with_members(state, {site: Member("excluded", reason) for site in missing})
    return replace(state, phase="statistics")


def _pause(state: StudyState, at: int) -> StudyState:
    if state.over:
        raise _over(state)
    if state.phase == "approvals":
        raise StateError(f"the study {state.study} has not started", hint="there is nothing to pause yet")
    return state if state.paused else replace(state, paused_at=at)


def _resume(state: StudyState, at: int) -> StudyState:
    if state.over:
        raise _over(state)
    if state.paused_at is None:
        return state  # (13)
    task = state.task
    if task is not None:  # (11)
        task = replace(task, deadline_at=task.deadline_at + max(0, at - state.paused_at))
    return replace(state, paused_at=None, problem="", task=task)


def _abort(state: StudyState) -> StudyState:
    if state.phase == "aborted":
        return state  # (13)
    if state.phase == "complete":
        raise _over(state)
    return replace(state, phase="aborted", task=None, computing=False, paused_at=None, problem="")  # (12)


def _over(state: StudyState) -> StateError:
    return StateError(f"the study {state.study} is {state.phase}", hint="create another study to go on")


def _mark_silent(state: StudyState, site: str, silent: bool) -> StudyState:
    member_of(state, site)
    if state.over or (site in state.silent) == silent:
        return state  # (13)
    others = {s for s in state.silent if s != site}
    return replace(state, silent=tuple(sorted(others | {site} if silent else others)))
