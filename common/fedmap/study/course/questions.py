"""What can be asked of a study's state: who takes part, who is waited for, who has what to do.

Questions only: nothing here changes a state, and the words are for people (status view, `GetStatus`).
"""

from __future__ import annotations

from typing import Literal

from fedmap.errors import NotFoundError
from fedmap.study.course.events import Compute
from fedmap.study.course.state import KIND_OF_PHASE, Member, OpenTask, StudyState, TaskKind

_NAMES_SHOWN = 5

_WORK: dict[TaskKind, str] = {
    "statistics": "statistics",
    "initialise": "the first model",
    "fit": "updates",
    "rule": "terms of the decision rule",
    "evaluate": "scores",
}


def participants(state: StudyState) -> tuple[str, ...]:
    """Sites that take part, sorted."""
    return tuple(sorted(site for site, m in state.members.items() if m.membership == "approved"))


def member_of(state: StudyState, site: str) -> Member:
    """The site's part in the study; NotFoundError when it was never invited."""
    member = state.members.get(site)
    if member is None:
        raise NotFoundError(
            f"{site} is not invited to the study {state.study}", hint="ask the operator to invite the site"
        )
    return member


def live_sites(state: StudyState) -> tuple[str, ...]:
    """Those that take part and give signs of life, sorted."""
    silent = set(state.silent)
    return tuple(site for site in participants(state) if site not in silent)


def step_ids(state: StudyState) -> tuple[str, ...]:
    """The ids of all tasks of the study, in their order."""
    fits = (f"round-{number}" for number in range(1, state.rounds + 1))
    return ("statistics", "initialise", *fits, "rule", "evaluate")


def current_step(state: StudyState) -> str:
    """The id of the task that is open, computing or next; empty when there is none."""
    kind = KIND_OF_PHASE.get(state.phase)
    if kind is None:
        return ""
    return f"round-{state.rounds_done + 1}" if kind == "fit" else kind


def pending_sites(state: StudyState) -> tuple[str, ...]:
    """Sites that take part and have the open task still to do, silent ones too."""
    task = state.task
    if task is None or state.computing:
        return ()
    taking_part = set(participants(state))
    return tuple(sorted(s for s in task.asked if s in taking_part and _owes(task, s)))


def sites_waited_for(state: StudyState) -> tuple[str, ...]:
    """Sites whose answer could still keep the open task from closing before its deadline, sorted."""
    pending = pending_sites(state)
    if state.task is not None and state.task.kind == "statistics":
        return pending
    silent = set(state.silent)
    return tuple(site for site in pending if site not in silent)


def tasks_for(state: StudyState, site: str) -> OpenTask | None:
    """The task that this site has to do now. A task that is open stays so while the study is paused."""
    return state.task if _is_pending(state, site) else None


def is_open(state: StudyState, site: str, task_id: str) -> bool:
    """Whether an answer of this site to this task would still be looked at."""
    task = state.task
    if task is None or state.computing or task.id != task_id or not _takes_part(state, site):
        return False
    return site in task.asked or site in task.answers


def answer_of(
    state: StudyState, site: str
) -> Literal["", "waiting", "accepted", "abstained", "failed", "rejected"]:
    """What the site's answer to the task came to; empty when it was not asked."""
    task = state.task
    if task is None:
        return ""
    if _is_pending(state, site):
        return "waiting"
    answer = task.answers.get(site)
    return answer.status if answer is not None else ""


def norm_of(state: StudyState, site: str) -> float | None:
    """The length of the parameters that the site gave to the open round; None where it gave none."""
    answer = state.task.answers.get(site) if state.task is not None else None
    return answer.norm if answer is not None and answer.status == "accepted" else None


def is_late(state: StudyState, site: str, now: int) -> bool:
    """Past the deadline with the task still to do."""
    task = state.task
    return task is not None and now >= task.deadline_at and _is_pending(state, site)


def usable_count(task: OpenTask) -> int:
    """Answers that count towards the quorum. To the last two steps "nothing to say" is an answer as well."""
    good = ("accepted", "abstained") if task.kind in ("rule", "evaluate") else ("accepted",)
    return sum(answer.status in good for answer in task.answers.values())


def answers_needed(state: StudyState, task: OpenTask, now: int) -> int:
    """How many of those close the task."""
    if task.kind == "initialise" or (task.kind in ("rule", "evaluate") and now >= task.deadline_at):
        return 1
    return state.quorum


def due_compute(state: StudyState) -> Compute | None:
    """The computation that is owed: also after a crash. None while a failed one waits for the operator."""
    task = state.task
    if task is None or not state.computing or state.problem:
        return None
    accepted = tuple(sorted(site for site, answer in task.answers.items() if answer.status == "accepted"))
    if task.kind == "initialise":  # a pause may have let in two models: the one drawn first is taken
        drawn = [site for site in task.asked if site in accepted]
        accepted = (*drawn, *accepted)[:1]
    return Compute(task.id, task.kind, task.round, accepted)


def next_tick(state: StudyState, now: int) -> int | None:
    """When time alone can next change something (unix ms); None: not before another event."""
    task = state.task
    if task is None or state.paused or state.computing or task.deadline_at <= now:
        return None
    return task.deadline_at


def live_failed(state: StudyState, task: OpenTask) -> tuple[str, ...]:
    """Live sites that failed or were rejected, and are not asked to try again yet."""
    pending = set(pending_sites(state))
    return tuple(
        site
        for site in live_sites(state)
        if site in task.answers and not task.answers[site].stands and site not in pending
    )


def waiting_for(state: StudyState, now: int) -> str:
    """One plain sentence for the operator."""
    if state.over:
        return f"The study is {state.phase}."
    step = current_step(state)
    if state.problem:
        return f"{step} could not be computed ({state.problem}): resume to try again, or abort."
    if state.paused:
        return f"Paused at {step}: waiting for the operator to resume."
    if state.phase == "approvals":
        return _approvals_sentence(state)
    if state.task is None or state.computing:
        return f"The aggregator is computing the result of {step}."
    return _task_sentence(state, state.task, now)


def name_list(sites: tuple[str, ...]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(sites[:_NAMES_SHOWN])
    return shown if len(sites) <= _NAMES_SHOWN else f"{shown} and {len(sites) - _NAMES_SHOWN} more"


def _takes_part(state: StudyState, site: str) -> bool:
    member = state.members.get(site)
    return member is not None and member.membership == "approved"


def _owes(task: OpenTask, site: str) -> bool:
    """Has not answered, or failed in an attempt before the current one."""
    answer = task.answers.get(site)
    return answer is None or (not answer.stands and answer.attempt < task.attempt)


def _is_pending(state: StudyState, site: str) -> bool:
    task = state.task
    if task is None or state.computing or not _takes_part(state, site):
        return False
    return site in task.asked and _owes(task, site)


def _approvals_sentence(state: StudyState) -> str:
    approved = participants(state)
    invited = tuple(sorted(s for s, m in state.members.items() if m.membership == "invited"))
    counted = f"({len(approved)} approved, the quorum is {state.quorum})"
    if len(approved) >= state.quorum:
        asked = f" or approval by {name_list(invited)}" if invited else ""
        return f"Waiting for the operator to start{asked} {counted}."
    if len(approved) + len(invited) < state.quorum:
        return f"Too few sites are left to start {counted}: abort the study."
    return f"Waiting for approval by {name_list(invited)} {counted}."


def _task_sentence(state: StudyState, task: OpenTask, now: int) -> str:
    """Who has still to answer, who is not waited for, and what happens if the quorum is out of reach."""
    usable, needed = usable_count(task), answers_needed(state, task, now)
    past = ", past the deadline" if now >= task.deadline_at else ""
    counted = f"({usable} of {needed} usable answer(s) so far{past})"
    open_to = tuple(s for s in participants(state) if s not in task.answers or not task.answers[s].stands)
    if usable + len(open_to) < answers_needed(state, task, task.deadline_at):
        return f"Too few sites are left to close {task.id} {counted}: abort the study."
    waited, failed = sites_waited_for(state), live_failed(state, task)
    quiet = tuple(site for site in open_to if site in state.silent and site not in waited)
    parts = [f"{_WORK[task.kind]} from {name_list(waited)}"] if waited else []
    if failed and not waited:
        parts.append(f"the deadline, when {name_list(failed)} can try again")
    if quiet:
        parts.append(f"a sign of life from {name_list(quiet)}")
    return f"Waiting for {' or '.join(parts) or 'the deadline'} {counted}."
