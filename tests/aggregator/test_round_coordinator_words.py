"""What the operator reads while a study waits, and what the store gets."""

from __future__ import annotations

import json

import pytest

from fedmap.contract.v1.values import GlobalRule
from fedmap.errors import StorageError
from fedmap.study.course import events
from fedmap.study.course.questions import name_list, waiting_for
from fedmap.study.course.state import state_from_json, state_to_json
from tests.aggregator.coordinator_course import Course, course, started


def words(study: Course) -> str:
    return waiting_for(study.state, study.now)


def test_a_study_up_for_approval_names_who_has_not_approved() -> None:
    study = course("a", "b", "c")
    study.approve("a")
    assert words(study) == "Waiting for approval by b, c (1 approved, the quorum is 2)."
    study.approve("b")
    assert words(study) == (
        "Waiting for the operator to start or approval by c (2 approved, the quorum is 2)."
    )
    study.leave("b", "c")
    assert words(study) == "Too few sites are left to start (1 approved, the quorum is 2): abort the study."


def test_an_open_round_names_who_has_not_answered_and_who_is_dead() -> None:
    study = started("a", "b", "c", "d").go_to("round-1")
    study.answer("a")
    study.silent("d")
    assert words(study) == (
        "Waiting for updates from b, c or a sign of life from d (1 of 2 usable answer(s) so far)."
    )


def test_a_round_below_quorum_says_that_it_is_past_its_deadline() -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a")
    study.pass_deadline()
    assert words(study) == "Waiting for updates from b (1 of 2 usable answer(s) so far, past the deadline)."


def test_a_round_whose_live_sites_all_failed_says_when_they_are_asked_again() -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a")
    study.answer("b", status="failed")
    assert words(study) == (
        "Waiting for the deadline, when b can try again (1 of 2 usable answer(s) so far)."
    )


@pytest.mark.parametrize("why", ["left", "abstained"])
def test_a_round_that_can_never_meet_its_quorum_says_so(why: str) -> None:
    study = started("a", "b").go_to("round-1")
    study.answer("a")
    if why == "left":
        study.leave("b")
    else:
        study.answer("b", status="abstained")
    assert words(study) == (
        "Too few sites are left to close round-1 (1 of 2 usable answer(s) so far): abort the study."
    )


def test_a_pause_a_computation_and_its_failure_are_told_apart() -> None:
    study = started("a", "b").go_to("round-1")
    study.send(events.Paused(study.now))
    assert words(study) == "Paused at round-1: waiting for the operator to resume."
    study.send(events.Resumed(study.now))
    study.answer("a", "b")
    assert words(study) == "The aggregator is computing the result of round-1."
    study.send(events.ComputeFailed(study.now, "round-1", "the penalty is not finite"))
    assert words(study) == (
        "round-1 could not be computed (the penalty is not finite): resume to try again, or abort."
    )


def test_a_study_that_is_over_waits_for_nothing() -> None:
    study = started("a", "b")
    study.send(events.Aborted(study.now))
    assert words(study) == "The study is aborted."


def test_two_hundred_names_do_not_fill_the_screen() -> None:
    assert name_list(tuple(f"s{n}" for n in range(200))) == "s0, s1, s2, s3, s4 and 195 more"


def test_a_state_comes_back_from_the_store_as_it_went() -> None:
    study = started("a", "b", "c").go_to("rule")
    study.answer("a", norm=0.1 + 0.2)
    study.answer("b", status="failed")
    study.silent("c")
    study.send(events.Paused(study.now))
    assert state_from_json(state_to_json(study.state)) == study.state
    study.send(events.Resumed(study.now))
    study.answer("b")
    study.send(events.Computed(study.now, "rule", rule=GlobalRule(0.1, "a note", (1.0,), (0.3,))))
    assert state_from_json(state_to_json(study.state)) == study.state


@pytest.mark.parametrize("change", ["missing", "extra", "type", "phase", "text"])
def test_a_stored_state_that_was_tampered_with_is_refused(change: str) -> None:
    fields = json.loads(state_to_json(started("a", "b").state))
    if change == "missing":
        del fields["quorum"]
    elif change == "extra":
        fields["password"] = "x"
    elif change == "type":
        fields["quorum"] = "2"
    elif change == "phase":
        fields["phase"] = "lunch"
    text = json.dumps(fields) if change != "text" else "{"
    with pytest.raises(StorageError, match="cannot be read") as refused:
        state_from_json(text)
    assert "backup" in refused.value.hint
