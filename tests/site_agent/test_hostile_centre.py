"""An aggregator that means harm: it gets no more answers than the approved terms have tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmap.contract.v1.values import NextTaskRequest, NextTaskResponse
from fedmap.errors import RejectedError
from fedmap_site.loop.workplace import MOST_ANSWERS
from tests.site_agent.federation_double import AggregatorDouble
from tests.site_agent.running_agent import AgentSite


@pytest.fixture
def aggregator() -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        yield double


@pytest.fixture
def site(tmp_path: Path, aggregator: AggregatorDouble) -> AgentSite:
    return AgentSite(tmp_path, aggregator)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "round-3", "round": 3},  # the terms have two
        {"id": "round-2", "round": 1},
        {"id": "extra-1"},
        {"id": "statistics"},
        {"round": 0, "id": "round-0"},
        {"kind": "evaluate", "id": "evaluate-2", "round": 0},
        {"kind": "rule", "id": "rule", "round": 1},
        {"kind": "unspecified", "id": "evaluate", "round": 0},
        {"prior_size": 1 << 40},
    ],
)
def test_a_task_that_the_approved_terms_do_not_have_is_declined(
    site: AgentSite, aggregator: AggregatorDouble, fields: dict[str, Any]
) -> None:
    aggregator.tasks = [replace(site.fit(), **fields)]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    assert not aggregator.received
    assert site.states() == {}
    assert "task.declined" in site.actions()


def test_who_has_an_answer_gets_the_same_one_for_every_further_attempt(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    """A new prior under the same round's name would otherwise ask for one more fit."""
    aggregator.tasks = [site.fit(), site.fit(attempt=1)]
    site.run_until(lambda: len(aggregator.received) == 3)
    assert len({answer for answer, _ in aggregator.received}) == 1
    assert site.states() == {"toy.round-1.0": "sent"}


def test_who_refuses_answers_to_get_more_of_them_is_given_no_more(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    """Each would carry noise of its own, and their mean would show what the noise hides."""
    aggregator.refuse["SubmitAnswer"] = RejectedError("no good", hint="try again")
    aggregator.tasks = [site.fit(attempt=number) for number in range(MOST_ANSWERS + 2)]
    site.run_until(lambda: any(len(poll.in_hand) == len(aggregator.tasks) for poll in aggregator.polls))
    assert sorted(site.states()) == [f"toy.round-1.{number}" for number in range(MOST_ANSWERS)]


def test_a_declined_task_that_is_offered_again_and_again_does_not_fill_the_log(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = site.fit(3)

    def always(request: NextTaskRequest, _context: object) -> NextTaskResponse:
        aggregator.polls.append(request)
        with aggregator.changed:
            aggregator.changed.notify_all()
        return NextTaskResponse(task)

    monkeypatch.setattr(aggregator, "next_task", always)
    site.run_until(lambda: len(aggregator.polls) >= 4)
    assert site.actions().count("task.declined") == 1
    assert any("offered again" in str(notice) for notice in site.notices)
