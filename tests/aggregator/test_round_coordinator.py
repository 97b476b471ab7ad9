"""When a round closes, and when it does not: dead, late, failing and leaving sites, quorum and deadline."""

from __future__ import annotations

import pytest

from fedmap.errors import ConflictError, NotFoundError, StaleError, StateError
from fedmap.study.course import events
from fedmap.study.course.coordinator import advance
from fedmap.study.course.events import Compute, Finished, TaskOpened
from fedmap.study.course.questions import answer_of, is_late, is_open, next_tick, participants, tasks_for
from tests.aggregator.coordinator_course import DEADLINE_MS, course, started

# --- start


def test_a_study_below_quorum_does_not_start_and_names_who_is_missing() -> None:
    study = course("a", "b", "c")
    study.approve("a")
    with pytest.raises(StateError, match=r"1 site.*quorum is 2") as refused:
        study.start()
    assert "b, c" in refused.value.hint
    assert study.state.phase == "approvals"


def test_a_site_that_had_not_approved_at_the_start_takes_no_part() -> None:
    study = course("a", "b", "c")
    study.approve("a", "b")
    (opened,) = study.start()
    assert isinstance(opened, TaskOpened)
    assert opened.task.asked == ("a", "b")
    assert study.state.members["c"].membership == "excluded"
    assert study.state.members["c"].reason == "had not approved when the study started"
    assert tasks_for(study.state, "c") is None
    with pytest.raises(StateError, match="started without c"):
        study.approve("c")


def test_a_site_that_was_not_invited_is_unknown_to_the_study() -> None:
    study = course("a", "b")
    for event in (
        events.Approved(0, "x"),
        events.Left(0, "x", ""),
        events.Silent(0, "x"),
        events.Heard(0, "x"),
    ):
        with pytest.raises(NotFoundError, match="not invited"):
            study.send(event)


def test_a_site_that_left_before_the_start_may_approve_after_all() -> None:
    study = course("a", "b")
    study.approve("a", "b")
    study.leave("b")
    assert participants(study.state) == ("a",)
    study.approve("b")
    assert participants(study.state) == ("a", "b")


def test_the_steps_follow_one_another_in_one_order() -> None:
    study, seen = started("a", "b"), []
    while not study.state.over:
        seen.append((study.state.phase, study.task.id, study.task.kind, study.task.round))
        study.answer_all()
        study.compute()
    assert seen == [
        ("statistics", "statistics", "statistics", 0),
        ("initialisation", "initialise", "initialise", 0),
        ("rounds", "round-1", "fit", 1),
        ("rounds", "round-2", "fit", 2),
        ("rule", "rule", "rule", 0),
        ("evaluation", "evaluate", "evaluate", 0),
    ]
    assert study.last == (Finished("complete"),)


# --- who is waited for


@pytest.mark.parametrize(
    ("script", "closing", "counted"),
    [
        pytest.param("a+ b+", "c+", "abc", id="a live site that has not answered is waited for"),
        pytest.param("~c a+", "b+", "ab", id="a dead site is not waited for"),
        pytest.param("a+ b+", "~c", "ab", id="a site that dies last frees the round at once"),
        pytest.param("~c ^c a+ b+", "c+", "abc", id="a dead site that comes back is waited for"),
        pytest.param("a+ b+", "-c", "ab", id="a site that leaves frees the round"),
        pytest.param("a+ b+ -b", "c+", "ac", id="the answer of a site that leaves is not used"),
        pytest.param("a+ b+", "|", "ab", id="the deadline closes with the quorum"),
        pytest.param("a+ |", "b+", "ab", id="below quorum the round waits past its deadline"),
        pytest.param("a+ b0 |", "c+", "ac", id="a site without a weight does not count towards the quorum"),
        pytest.param("c! a+", "b+", "ab", id="a failing site is marked and the round goes on"),
        pytest.param("c? c! c+ a+", "b+", "abc", id="a failed answer can be made good"),
        pytest.param("a+ b! | b+", "|", "ab", id="a hanging site keeps no failed one from trying again"),
        pytest.param("a+ b! -c ~b | ^b", "b+", "ab", id="a dead site that failed is asked again when heard"),
        pytest.param("p a+ b+ c+ |", "r", "abc", id="while paused answers are taken and nothing closes"),
        pytest.param("a+ b+ p ~c", "r", "ab", id="a site silent during a pause is not waited for after it"),
        pytest.param("a+ b+ p -c", "r", "ab", id="a site that left in a pause is not waited for after it"),
        pytest.param("~c -c ^c a+", "b+", "ab", id="a silent site that left and is heard again stays out"),
    ],
)
def test_a_round_closes_only_when_nobody_is_waited_for(script: str, closing: str, counted: str) -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.play(script)
    assert not study.state.computing
    study.play(closing)
    assert study.last == (Compute("round-1", "fit", 1, tuple(counted)),)
    study.compute()
    assert study.task.asked == participants(study.state), "who failed is asked again in the next round"


def test_time_alone_closes_nothing_before_the_deadline() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.play("a+ b+")
    assert next_tick(study.state, study.now) == study.task.deadline_at
    assert study.pass_time(DEADLINE_MS - 1) == ()
    assert study.pass_time(1) == (Compute("round-1", "fit", 1, ("a", "b")),)


def test_past_its_deadline_a_round_below_quorum_shows_who_is_late() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.play("a+ |")
    assert next_tick(study.state, study.now) is None
    assert [is_late(study.state, site, study.now) for site in "abc"] == [False, True, True]


def test_a_site_that_left_takes_no_part() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.play("a+ b+ -b")
    with pytest.raises(StateError, match="takes no part"):
        study.answer("b")


def test_a_dead_site_costs_no_later_round_its_deadline() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.silent("c")
    study.go_to("evaluate")
    assert study.now < study.task.deadline_at


def test_a_site_that_leaves_while_its_answer_is_computed_does_not_change_the_computation() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.answer("a", "b", "c")
    study.leave("b")
    assert study.last == ()
    study.compute()
    assert study.task.asked == ("a", "c")


def test_a_site_that_leaves_after_a_failed_computation_is_not_in_the_next_one() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.answer("a", "b", "c")
    study.send(events.ComputeFailed(study.now, "round-1", "the penalty is not finite"))
    study.leave("b")
    assert study.state.problem, "the operator still sees why"
    assert study.send(events.Resumed(study.now)) == (Compute("round-1", "fit", 1, ("a", "c")),)


# --- quorum and deadline


def test_failed_and_rejected_sites_are_asked_again_at_the_deadline_when_the_quorum_needs_them() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.answer("a")
    study.answer("b", status="failed")
    study.answer("c", status="rejected")
    assert tasks_for(study.state, "b") is None
    (opened,) = study.pass_deadline()
    assert isinstance(opened, TaskOpened)
    assert (opened.task.attempt, opened.task.deadline_at) == (2, study.now + DEADLINE_MS)
    assert [tasks_for(study.state, site) is not None for site in "abc"] == [False, True, True]
    assert [answer_of(study.state, site) for site in "abc"] == ["accepted", "waiting", "waiting"]
    study.answer("b")
    study.answer("c", status="failed")
    assert study.last == (Compute("round-1", "fit", 1, ("a", "b")),)


def test_a_failure_after_the_deadline_is_asked_again_at_once_with_a_new_deadline() -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a")
    study.pass_deadline()
    study.answer("b", status="failed")
    assert study.last == (TaskOpened(study.task),)
    assert study.task.attempt == 2
    study.answer("b", status="failed")
    assert study.task.attempt == 2, "not before the new deadline"


def test_a_late_answer_to_an_earlier_attempt_still_counts() -> None:
    study = started("a", "b", "c", quorum=3).go_to("round-1")
    study.answer("a")
    study.silent("b")
    study.answer("c", status="failed")
    study.pass_deadline()
    assert study.task.attempt == 2
    study.send(events.Answered(study.now, "b", "round-1", 1, "accepted"))
    study.answer("c")
    assert study.last == (Compute("round-1", "fit", 1, ("a", "b", "c")),)


@pytest.mark.parametrize("step", ["rule", "evaluate"])
def test_the_last_steps_close_at_the_deadline_with_a_single_answer(step: str) -> None:
    study = started("a", "b", "c", quorum=3).go_to(step)
    study.answer("b")
    assert not study.state.computing
    study.pass_deadline()
    assert isinstance(study.last[0], Compute)
    assert study.last[0].sites == ("b",)


@pytest.mark.parametrize("step", ["rule", "evaluate"])
def test_sites_that_have_nothing_to_say_do_not_hold_up_the_last_steps(step: str) -> None:
    study = started("a", "b").go_to(step)
    study.answer("a", "b", status="abstained")
    assert isinstance(study.last[0], Compute)
    assert study.last[0].sites == ()


@pytest.mark.parametrize("step", ["rule", "evaluate"])
def test_the_last_steps_never_close_with_nothing(step: str) -> None:
    study = started("a", "b").go_to(step)
    study.pass_deadline()
    assert not study.state.computing
    study.answer("a", "b", status="failed")
    assert (study.state.computing, study.task.attempt) == (False, 2)


# --- answers


@pytest.mark.parametrize("status", ["failed", "rejected", "abstained"])
def test_an_accepted_answer_cannot_be_taken_back(status: str) -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a")
    with pytest.raises(ConflictError, match="accepted already"):
        study.answer("a", status=status)  # type: ignore[arg-type]


def test_an_old_failure_that_is_sent_again_does_not_hide_a_newer_one() -> None:
    study = started("a", "b", "c", quorum=3).go_to("round-1")
    study.answer("a", "b")
    study.answer("c", status="failed")
    study.pass_deadline()
    study.answer("c", status="rejected")
    before = study.state
    study.send(events.Answered(study.now, "c", "round-1", 1, "failed"))
    assert study.state is before


def test_an_answer_after_closing_is_stale() -> None:
    study = started("a", "b", "c").go_to("round-1")
    study.silent("c")
    study.answer("a", "b")
    assert not is_open(study.state, "c", "round-1")
    with pytest.raises(StaleError, match=r"round-1.*closed"):
        study.answer("c")
    study.compute()
    with pytest.raises(StaleError, match=r"round-1.*closed"):
        study.send(events.Answered(study.now, "c", "round-1", 1, "accepted"))
    assert is_open(study.state, "c", "round-2")


@pytest.mark.parametrize(("task", "attempt"), [("round-2", 1), ("rule", 1), ("nonsense", 1), ("round-1", 2)])
def test_an_answer_to_a_task_that_is_not_open_yet_is_refused(task: str, attempt: int) -> None:
    study = started("a", "b").go_to("round-1")
    with pytest.raises(NotFoundError, match="not open"):
        study.send(events.Answered(study.now, "a", task, attempt, "accepted"))


@pytest.mark.parametrize(
    ("norms", "median"),
    [
        pytest.param([1.0, 3.0, 50.0], 3.0, id="the median of accepted answers"),
        pytest.param([2.0, 40.0], 2.0, id="of two the smaller, so that one cannot raise the limit"),
    ],
)
def test_the_cohort_norm_is_of_the_last_round(norms: list[float], median: float) -> None:
    study = started("a", "b", "c", "d", "e").go_to("round-1")
    assert study.state.cohort_norm is None
    for site, norm in zip("abc", norms, strict=False):
        study.answer(site, norm=norm)
    study.answer("d", status="rejected", norm=1e9)
    study.play("c0 e0" if len(norms) == 2 else "e0")
    assert study.state.cohort_norm == median


def test_repeated_events_change_nothing() -> None:
    study = started("a", "b", "c").go_to("round-1")
    for event in (
        events.Approved(study.now, "a"),
        events.Started(study.now),
        events.Silent(study.now, "c"),
        events.Heard(study.now, "c"),
        events.Answered(study.now, "a", "round-1", 1, "accepted", 2.0),
        events.Answered(study.now, "b", "round-1", 1, "failed"),
        events.Left(study.now, "c", "gone"),
        events.Paused(study.now),
        events.Resumed(study.now + 5),
        events.Tick(study.now + 5),
        events.Aborted(study.now + 5),
    ):
        study.send(event)
        again = advance(study.state, event)
        assert again.state is study.state, f"{event} twice"
        assert again.decisions == ()
