"""Statistics and the first model, computing, pausing and ending: what is special about each step."""

from __future__ import annotations

import pytest

from fedmap.algorithm.prior.values import draw_initial_site
from fedmap.contract.v1.values import GlobalRule
from fedmap.errors import StaleError, StateError
from fedmap.study.course import events
from fedmap.study.course.events import Compute, Finished, TaskOpened
from fedmap.study.course.questions import due_compute, participants, tasks_for
from tests.aggregator.coordinator_course import DEADLINE_MS, Course, course, started


def drawn(study: Course) -> str:
    return study.task.asked[-1]


def others(study: Course) -> list[str]:
    return [site for site in participants(study.state) if site not in study.task.asked]


# --- statistics


def test_statistics_wait_for_a_silent_site_until_the_deadline() -> None:
    study = started("a", "b", "c")
    study.silent("c")
    study.answer("a", "b")
    assert not study.state.computing
    study.pass_deadline()
    assert study.last == (Compute("statistics", "statistics", 0, ("a", "b")),)


def test_sites_without_accepted_statistics_are_excluded_with_the_reason() -> None:
    study = started("a", "b", "dead", "failing", "late", "refused")
    study.answer("a", "b")
    study.answer("failing", status="failed")
    study.answer("refused", status="rejected")
    study.silent("dead")
    study.pass_deadline()
    reasons = {s: m.reason for s, m in study.state.members.items() if m.membership == "excluded"}
    assert reasons == {
        "dead": "gave no sign of life and sent no statistics before the deadline",
        "failing": "its statistics could not be made: a reason",
        "late": "sent no statistics before the deadline",
        "refused": "its statistics were refused: a reason",
    }
    study.go_to("round-1")
    assert study.task.asked == ("a", "b")
    assert tasks_for(study.state, "late") is None


def test_a_site_whose_statistics_failed_does_not_hold_up_the_others() -> None:
    study = started("a", "b", "c")
    study.answer("c", status="failed")
    study.answer("a", "b")
    assert study.state.computing
    assert participants(study.state) == ("a", "b")


def test_below_quorum_nobody_is_excluded_and_the_failed_are_asked_again() -> None:
    study = started("a", "b", "c")
    study.answer("a")
    study.answer("b", "c", status="failed")
    study.pass_deadline()
    assert participants(study.state) == ("a", "b", "c")
    assert tasks_for(study.state, "b") is not None


def test_a_site_that_does_not_fit_the_others_is_excluded_by_the_result() -> None:
    study = started("a", "b", "c")
    study.answer("a", "b", "c")
    study.send(events.Computed(study.now, "statistics", exclude={"c": "its inputs differ"}))
    assert study.state.members["c"].reason == "its inputs differ"
    assert study.state.prior_digest == ""
    assert "c" not in study.task.asked


def test_a_site_that_left_by_its_own_wish_is_not_shown_as_excluded() -> None:
    study = started("a", "b", "c")
    study.answer("a", "b", "c")
    study.leave("c")
    study.send(events.Computed(study.now, "statistics", exclude={"c": "its inputs differ"}))
    assert study.state.members["c"].membership == "left"


@pytest.mark.parametrize("step", ["statistics", "initialise"])
def test_nobody_can_abstain_from_the_first_steps(step: str) -> None:
    study = started("a", "b").go_to(step)
    with pytest.raises(StateError, match="cannot be abstained"):
        study.answer(drawn(study), status="abstained")


# --- initialisation


def test_the_first_model_comes_from_the_site_that_the_simulator_draws() -> None:
    study = started("a", "b", "c", "d").go_to("initialise")
    first = draw_initial_site(("a", "b", "c", "d"), 7)
    assert study.task.asked == (first,)
    study.answer(first)
    assert study.last == (Compute("initialise", "initialise", 0, (first,)),)


@pytest.mark.parametrize("fate", ["failed", "rejected", "left", "silent", "late"])
def test_another_site_is_drawn_when_the_drawn_one_does_not_deliver(fate: str) -> None:
    study = started("a", "b", "c").go_to("initialise")
    first = drawn(study)
    rest = tuple(others(study))
    study.now += 10
    if fate == "left":
        study.leave(first)
    elif fate == "silent":
        study.silent(first)
    elif fate == "late":
        study.pass_deadline()
    else:
        study.answer(first, status=fate)  # type: ignore[arg-type]
    assert study.last == (TaskOpened(study.task),)
    assert drawn(study) == draw_initial_site(rest, 7)
    assert study.task.deadline_at == study.now + DEADLINE_MS
    study.answer(drawn(study))
    assert study.state.computing


def test_a_site_that_is_silent_when_the_draw_falls_on_it_is_passed_over_at_once() -> None:
    study = started("a", "b", "c")
    first = draw_initial_site(("a", "b", "c"), 7)
    study.answer_all()
    study.silent(first)
    study.compute()
    assert study.last == (TaskOpened(study.task),)
    assert drawn(study) != first


def test_a_drawn_site_that_comes_back_in_time_is_not_turned_away() -> None:
    study = started("a", "b", "c").go_to("initialise")
    first = drawn(study)
    study.silent(first)
    study.heard(first)
    study.answer(first)
    assert study.last == (Compute("initialise", "initialise", 0, (first,)),)


def test_two_first_models_taken_during_a_pause_leave_the_one_drawn_first() -> None:
    study = started("a", "b", "c").go_to("initialise")
    first = drawn(study)
    study.silent(first)
    second = drawn(study)
    study.send(events.Paused(study.now))
    study.answer(second, first)
    study.send(events.Resumed(study.now))
    assert study.last == (Compute("initialise", "initialise", 0, (first,)),)


def test_all_are_drawn_again_at_the_deadline_when_every_site_failed() -> None:
    study = started("a", "b", "c").go_to("initialise")
    for _ in range(3):
        study.answer(drawn(study), status="failed")
    assert len(set(study.task.asked)) == 3
    assert study.last == (), "not before the deadline: a broken site would be asked without end"
    study.pass_deadline()
    assert (study.task.attempt, len(study.task.asked)) == (2, 1)
    study.answer(drawn(study), status="failed")
    assert len(study.task.asked) == 2
    study.answer(drawn(study))
    assert study.state.computing


def test_when_every_site_is_silent_the_first_to_come_back_is_drawn() -> None:
    study = started("a", "b", "c").go_to("initialise")
    first = drawn(study)
    back = others(study)[0]
    study.silent("a", "b", "c")
    study.pass_deadline()
    study.heard(back)
    assert tasks_for(study.state, back) is not None
    assert first in study.task.asked


# --- computing


def test_a_result_that_nobody_waits_for_is_stale() -> None:
    study = started("a", "b").go_to("round-1")
    for task in ("round-1", "initialise"):
        with pytest.raises(StaleError):
            study.send(events.Computed(study.now, task, "digest", 1))
        with pytest.raises(StaleError):
            study.send(events.ComputeFailed(study.now, task, "why"))
    study.answer("a", "b")
    study.compute()
    with pytest.raises(StaleError):
        study.send(events.Computed(study.now, "round-1", "digest", 1))


def test_a_round_without_a_prior_is_no_result() -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a", "b")
    with pytest.raises(StateError, match="no prior"):
        study.send(events.Computed(study.now, "round-1"))
    assert study.state.computing


def test_a_computation_is_owed_until_its_result_is_there() -> None:
    study = started("a", "b").go_to("round-1")
    assert due_compute(study.state) is None
    study.answer("a", "b")
    assert due_compute(study.state) == study.last[0]
    study.compute()
    assert due_compute(study.state) is None
    assert (study.state.prior_digest, study.state.prior_size) == ("prior-of-round-1", 10)


def test_a_failed_computation_holds_the_study_until_it_is_resumed_and_loses_no_answer() -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a", "b")
    owed = study.last[0]
    study.send(events.ComputeFailed(study.now, "round-1", "the penalty is not finite"))
    assert study.state.paused
    assert due_compute(study.state) is None
    study.send(events.Resumed(study.now + 5))
    assert study.last == (owed,)
    study.compute()
    assert study.task.id == "round-2"


def test_the_rule_of_the_global_model_is_kept_for_the_evaluation() -> None:
    rule = GlobalRule(0.25, "", (1.0, 2.0), (0.1, 0.3))
    study = started("a", "b").go_to("rule")
    study.answer("a", "b")
    study.send(events.Computed(study.now, "rule", rule=rule))
    assert study.state.rule == rule
    assert study.state.prior_digest == "prior-of-round-2"


# --- pausing


def test_a_result_during_a_pause_is_taken_and_the_next_task_opens_on_resume() -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a", "b")
    study.send(events.Paused(study.now))
    assert study.compute() == ()
    assert study.state.task is None
    study.now += 500
    study.send(events.Resumed(study.now))
    assert study.last == (TaskOpened(study.task),)
    assert (study.task.id, study.task.opened_at) == ("round-2", study.now)


def test_a_pause_extends_the_deadline_by_its_length() -> None:
    study = started("a", "b", "c").go_to("round-1")
    deadline = study.task.deadline_at
    study.answer("a", "b")
    study.send(events.Paused(study.now))
    study.pass_time(10 * DEADLINE_MS)
    study.send(events.Resumed(study.now))
    assert study.task.deadline_at == deadline + 10 * DEADLINE_MS
    assert not study.state.computing
    study.pass_deadline()
    assert study.state.computing


def test_a_clock_set_back_during_a_pause_does_not_shorten_the_deadline() -> None:
    study = started("a", "b", "c").go_to("round-1")
    deadline = study.task.deadline_at
    study.send(events.Paused(study.now))
    study.send(events.Resumed(study.now - 1_000))
    assert study.task.deadline_at == deadline


def test_a_drawn_site_that_goes_during_a_pause_is_replaced_after_it() -> None:
    study = started("a", "b", "c").go_to("initialise")
    first = drawn(study)
    study.send(events.Paused(study.now))
    study.silent(first)
    study.leave(first)
    assert not study.last
    study.send(events.Resumed(study.now))
    assert study.last == (TaskOpened(study.task),)
    assert drawn(study) != first


def test_a_study_that_has_not_started_cannot_be_paused() -> None:
    study = course("a", "b")
    with pytest.raises(StateError, match="has not started"):
        study.send(events.Paused(study.now))


# --- the end


@pytest.mark.parametrize("step", ["statistics", "initialise", "round-2", "rule", "evaluate"])
@pytest.mark.parametrize("script", ["", "p", "a+", "a+ b+"])
def test_abort_is_final_at_every_step(step: str, script: str) -> None:
    study = started("a", "b").go_to(step)
    task = study.task.id
    if step != "initialise" or script == "p":  # where one site alone is asked
        study.play(script)
    assert study.send(events.Aborted(study.now)) == (Finished("aborted"),)
    assert tasks_for(study.state, "a") is None
    for event in (events.Started(0), events.Paused(0), events.Resumed(0)):
        with pytest.raises(StateError, match="is aborted"):
            study.send(event)
    assert due_compute(study.state) is None
    for late in (events.Answered(0, "a", task, 1, "accepted"), events.Computed(0, task, "digest", 1)):
        with pytest.raises(StaleError):
            study.send(late)
    for quiet in (events.Tick(10**15), events.Silent(0, "a"), events.Heard(0, "b"), events.Aborted(0)):
        assert study.send(quiet) == ()
    assert study.state.phase == "aborted"


def test_a_complete_study_cannot_be_aborted_and_starting_it_again_changes_nothing() -> None:
    study = started("a", "b").go_to("evaluate")
    study.answer("a", "b")
    study.send(events.Paused(study.now))
    assert study.compute() == (Finished("complete"),)
    assert not study.state.paused
    with pytest.raises(StateError, match="is complete"):
        study.send(events.Aborted(study.now))
    before = study.state
    study.start()
    assert study.state is before
