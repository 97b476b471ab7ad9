"""What sites and the centre's computations hand in: answers to the open task, results of the closed one.

The numbers are those of the rules in `coordinator`. Content is not judged here: the gate did.
"""

from __future__ import annotations

from dataclasses import replace

from fedmap.errors import ConflictError, NotFoundError, StaleError, StateError
from fedmap.study.course.events import Answered, Computed, ComputeFailed
from fedmap.study.course.questions import current_step, is_open, member_of, step_ids
from fedmap.study.course.state import Member, OpenTask, StudyState, TaskAnswer, with_members


def take_answer(state: StudyState, event: Answered) -> StudyState:
    """The state with this answer, where it says more than what is known of the site."""
    task = _task_to_answer(state, event)
    if event.status == "abstained" and task.kind in ("statistics", "initialise"):
        raise StateError(f"{task.id} cannot be abstained from", hint="answer with a failure and its reason")
    before = task.answers.get(event.site)
    if before is not None and before.stands:
        if before.status == event.status:
            return state  # (13)
        raise ConflictError(  # (7)
            f"the answer of {event.site} to {task.id} is {before.status} already",
            hint="keep the first answer; nothing more is needed for this task",
        )
    answer = TaskAnswer(event.status, event.attempt, event.norm, event.reason)
    if before is not None and not answer.stands and answer.attempt <= before.attempt:
        return state  # (13): an older failure never hides a newer one
    return replace(state, task=replace(task, answers={**task.answers, event.site: answer}))


def _task_to_answer(state: StudyState, event: Answered) -> OpenTask:
    member, task = member_of(state, event.site), state.task
    known, here = step_ids(state), current_step(state)
    passed = event.task_id in known and here in known and known.index(event.task_id) < known.index(here)
    if state.over or passed or (state.computing and event.task_id == here):  # (10), (12)
        raise StaleError(
            f"{event.task_id} of the study {state.study} is closed",
            hint="drop this answer and ask for the next task",
        )
    if member.membership != "approved":  # (3)
        raise StateError(
            f"{event.site} takes no part in the study {state.study} ({member.reason or member.membership})",
            hint="only sites that approved before the start and have not left can answer",
        )
    if (
        task is None
        or not is_open(state, event.site, event.task_id)
        or not 1 <= event.attempt <= task.attempt
    ):
        raise NotFoundError(
            f"{event.task_id} (attempt {event.attempt}) of {state.study} is not open to {event.site}",
            hint="ask for the next task and answer that",
        )
    return task


def _closed_task(state: StudyState, task_id: str) -> OpenTask:
    if state.task is None or not state.computing or state.task.id != task_id:  # (10)
        raise StaleError(
            f"no result of {task_id} is awaited in the study {state.study}", hint="drop this result"
        )
    return state.task


def take_result(state: StudyState, event: Computed) -> StudyState:
    """The state with the result of its closed task, at rest before the next step."""
    task = _closed_task(state, event.task_id)
    if task.kind in ("initialise", "fit") and not event.prior_digest:
        raise StateError(f"the result of {task.id} names no prior", hint="store the prior before its result")
    excluded = {
        site: Member("excluded", reason)
        for site, reason in event.exclude.items()
        if member_of(state, site).membership == "approved"
    }
    state = replace(with_members(state, excluded), task=None, computing=False, problem="")
    if event.prior_digest:
        state = replace(state, prior_digest=event.prior_digest, prior_size=event.prior_size)
    match task.kind:  # (2)
        case "statistics":
            return replace(state, phase="initialisation")
        case "initialise":
            return replace(state, phase="rounds" if state.rounds else "rule")
        case "fit":
            more = task.round < state.rounds
            return replace(state, phase="rounds" if more else "rule", rounds_done=task.round)
        case "rule":
            return replace(state, phase="evaluation", rule=event.rule)
        case "evaluate":
            return replace(state, phase="complete", paused_at=None)


def take_failure(state: StudyState, event: ComputeFailed) -> StudyState:
    """The state held until the operator has looked at the reason; the answers stay as they are."""
    _closed_task(state, event.task_id)
    if state.problem:
        return state  # (13)
    paused_at = event.at if state.paused_at is None else state.paused_at
    return replace(state, paused_at=paused_at, problem=event.reason or "no reason was given")  # (11)
