"""Liveness: who counts as silent, and which of two agents with one identity is refused."""

from __future__ import annotations

import pytest

from fedmap.errors import ConflictError, RejectedError
from fedmap_aggregator.studies.liveness import Instance, Liveness, Progress

START = 1_000_000
LIMIT = 120_000


@pytest.fixture
def liveness() -> Liveness:
    return Liveness(LIMIT, START)


def test_after_a_server_start_nobody_is_silent_before_the_limit_has_passed(liveness: Liveness) -> None:
    assert liveness.silent(["a", "b"], START + LIMIT - 1) == ()
    assert liveness.silent(["b", "a"], START + LIMIT) == ("a", "b")


def test_a_site_that_was_heard_counts_from_then(liveness: Liveness) -> None:
    liveness.heard("a", None, START + 50_000)
    assert liveness.silent(["a", "b"], START + LIMIT) == ("b",)
    assert liveness.silent_at("a") == START + 50_000 + LIMIT


def test_a_clock_that_steps_back_does_not_make_a_site_older(liveness: Liveness) -> None:
    liveness.heard("a", None, START + 50_000)
    liveness.heard("a", None, START + 10_000)
    assert liveness.silent_at("a") == START + 50_000 + LIMIT


def test_a_second_agent_with_the_same_identity_is_refused_while_the_first_is_alive(
    liveness: Liveness,
) -> None:
    liveness.heard("a", Instance("one", 1), START)
    with pytest.raises(ConflictError, match="another agent uses this identity"):
        liveness.heard("a", Instance("two", 9), START + LIMIT - 1)
    liveness.heard("a", Instance("one", 1), START + LIMIT - 1)


def test_a_refused_second_agent_does_not_count_as_a_sign_of_life(liveness: Liveness) -> None:
    liveness.heard("a", Instance("one", 1), START)
    with pytest.raises(ConflictError):
        liveness.heard("a", Instance("two", 1), START + LIMIT - 1)
    assert liveness.is_silent("a", START + LIMIT)


def test_an_agent_on_a_new_machine_takes_over_once_the_old_one_is_silent(liveness: Liveness) -> None:
    liveness.heard("a", Instance("one", 5), START)
    liveness.heard("a", Instance("two", 1), START + LIMIT)
    assert liveness.presence("a").instance == Instance("two", 1)


def test_a_restarted_agent_takes_over_at_once_and_its_older_process_is_refused(liveness: Liveness) -> None:
    liveness.heard("a", Instance("one", 1), START)
    liveness.heard("a", Instance("one", 2), START + 1)
    with pytest.raises(ConflictError, match="later start"):
        liveness.heard("a", Instance("one", 1), START + 2)


def test_an_agent_without_an_instance_id_is_refused(liveness: Liveness) -> None:
    with pytest.raises(RejectedError):
        liveness.heard("a", Instance("", 1), START)


def test_absurd_progress_is_made_harmless(liveness: Liveness) -> None:
    liveness.progress("a", Progress("s" * 500, "t" * 500, "patient 123", float("nan")))
    shown = liveness.presence("a").progress
    assert (len(shown.study), len(shown.task_id), shown.stage, shown.share) == (64, 64, "", 0.0)
    liveness.progress("a", Progress(stage="training", share=float("inf")))
    assert liveness.presence("a").progress.share == 1.0


def test_a_forgotten_site_may_come_back_with_another_agent(liveness: Liveness) -> None:
    liveness.heard("a", Instance("one", 1), START)
    liveness.forget("a")
    liveness.heard("a", Instance("two", 1), START + 1)
