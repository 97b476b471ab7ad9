"""When a task opens, asks again or closes. The numbers are those of the rules in `coordinator`.

`settle` is applied after every event, and applying it twice is the same as once.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median_low

from fedmap.algorithm.prior.values import draw_initial_site
from fedmap.study.course.questions import (
    answers_needed,
    current_step,
    live_failed,
    live_sites,
    participants,
    pending_sites,
    sites_waited_for,
    usable_count,
)
from fedmap.study.course.state import KIND_OF_PHASE, Member, OpenTask, StudyState, TaskAnswer, with_members


def settle(state: StudyState, at: int) -> StudyState:
    """Open, ask again or close, whatever is due at this time; the same object where nothing is."""
    if state.over or state.phase == "approvals" or state.paused or state.computing:  # (10), (11), (12)
        return state
    if state.task is None:
        state = _open_next(state, at)
    task = state.task
    if task is None:
        return state
    late = at >= task.deadline_at
    if usable_count(task) >= answers_needed(state, task, at):
        if late or task.kind == "initialise" or not sites_waited_for(state):  # (4), (5), (9)
            return _close(state, task)
        return state
    if task.kind == "initialise":
        return _draw_another(state, task, at)
    return _ask_failed_again(state, task, at) if late else state


def _deadline(state: StudyState, at: int) -> int:
    return at + max(1, round(state.deadline_seconds * 1000))


def _open_next(state: StudyState, at: int) -> StudyState:
    """The next step's task, asked of everybody who takes part, or of the one that is drawn."""
    kind = KIND_OF_PHASE[state.phase]
    asked = participants(state)
    if kind == "initialise" and asked:
        asked = (draw_initial_site(asked, state.seed),)  # (9): the simulator's draw
    task = OpenTask(
        id=current_step(state),  # (2)
        kind=kind,
        round=state.rounds_done + 1 if kind == "fit" else 0,
        opened_at=at,
        deadline_at=_deadline(state, at),
        attempt=1,
        asked=asked,
    )
    return replace(state, task=task)


def _ask_failed_again(state: StudyState, task: OpenTask, at: int) -> StudyState:
    """(6): not put off for a site that is alive and late, or one that hangs would hold up the study."""
    if not live_failed(state, task):
        return state
    again = replace(task, attempt=task.attempt + 1, opened_at=at, deadline_at=_deadline(state, at))
    return replace(state, task=again)


def _draw_another(state: StudyState, task: OpenTask, at: int) -> StudyState:
    """(9): those drawn before may still answer, so that nothing a site has done is lost."""
    late = at >= task.deadline_at
    if _live_pending(state) and not late:
        return state
    failed = live_failed(state, task)
    rest = tuple(site for site in live_sites(state) if _not_drawn_yet(task, site))
    if rest:
        asked, attempt = (*task.asked, draw_initial_site(rest, state.seed)), task.attempt
    elif failed and late:
        pending = pending_sites(state)
        asked, attempt = (*pending, draw_initial_site(failed, state.seed)), task.attempt + 1
    else:
        return state
    again = replace(task, asked=asked, attempt=attempt, opened_at=at, deadline_at=_deadline(state, at))
    return replace(state, task=again)


def _live_pending(state: StudyState) -> bool:
    silent = set(state.silent)
    return any(site not in silent for site in pending_sites(state))


def _not_drawn_yet(task: OpenTask, site: str) -> bool:
    """Not in the current attempt."""
    answer = task.answers.get(site)
    return site not in task.asked and (answer is None or answer.attempt < task.attempt)


def _close(state: StudyState, task: OpenTask) -> StudyState:
    """The task takes no more answers; the centre's work on it begins."""
    if task.kind == "fit":
        norms = [a.norm for a in task.answers.values() if a.status == "accepted" and a.norm is not None]
        state = replace(state, cohort_norm=median_low(norms) if norms else state.cohort_norm)
    if task.kind == "statistics":  # (8)
        out = {
            site: Member("excluded", _why_without(state, site, task.answers.get(site)))
            for site in participants(state)
            if site not in task.answers or task.answers[site].status != "accepted"
        }
        state = with_members(state, out)
    return replace(state, computing=True)  # (10)


def _why_without(state: StudyState, site: str, answer: TaskAnswer | None) -> str:
    if answer is None:
        silent = "gave no sign of life and " if site in state.silent else ""
        return f"{silent}sent no statistics before the deadline"
    what = "were refused" if answer.status == "rejected" else "could not be made"
    return f"its statistics {what}{': ' if answer.reason else ''}{answer.reason}"
