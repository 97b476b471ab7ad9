"""An aggregator that means harm: it gets no more answers than the approved terms have tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.errors import RejectedError
from fedmap.process.settings import read_config
from fedmap_site.config import SiteConfig
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


def _changed(task: pb.Task, **fields: object) -> pb.Task:
    changed = pb.Task()
    changed.CopyFrom(task)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "round-3", "round": 3},  # the terms have two
        {"id": "round-2", "round": 1},
        {"id": "extra-1"},
        {"id": "statistics"},
        {"round": 0, "id": "round-0"},
        {"kind": pb.TASK_KIND_EVALUATE, "id": "evaluate-2", "round": 0},
        {"kind": pb.TASK_KIND_RULE, "id": "rule", "round": 1},
        {"kind": pb.TASK_KIND_UNSPECIFIED, "id": "evaluate", "round": 0},
        {"prior_size": 1 << 40},
    ],
)
def test_a_task_that_the_approved_terms_do_not_have_is_declined(
    site: AgentSite, aggregator: AggregatorDouble, fields: dict[str, object]
) -> None:
    aggregator.tasks = [_changed(site.fit(), **fields)]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    assert not aggregator.received
    assert site.states() == {}
    assert "task.declined" in site.actions()


def test_who_has_an_answer_gets_the_same_one_for_every_further_attempt(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    """A new prior under the same round's name would otherwise ask for one more fit."""
    aggregator.tasks = [site.fit(), _changed(site.fit(), attempt=1)]
    site.run_until(lambda: len(aggregator.received) == 3)
    assert len({answer.SerializeToString() for answer, _ in aggregator.received}) == 1
    assert site.states() == {"toy.round-1.0": "sent"}


def test_who_refuses_answers_to_get_more_of_them_is_given_no_more(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    """Each would carry noise of its own, and their mean would show what the noise hides."""
    aggregator.refuse["SubmitAnswer"] = RejectedError("no good", hint="try again")
    aggregator.tasks = [_changed(site.fit(), attempt=number) for number in range(MOST_ANSWERS + 2)]
    site.run_until(lambda: any(len(poll.in_hand) == len(aggregator.tasks) for poll in aggregator.polls))
    assert sorted(site.states()) == [f"toy.round-1.{number}" for number in range(MOST_ANSWERS)]


def test_a_declined_task_that_is_offered_again_and_again_does_not_fill_the_log(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _changed(site.fit(), id="round-3", round=3)

    def always(request: pb.NextTaskRequest, _context: object) -> pb.NextTaskResponse:
        aggregator.polls.append(request)
        with aggregator.changed:
            aggregator.changed.notify_all()
        return pb.NextTaskResponse(task=task)

    monkeypatch.setattr(aggregator, "NextTask", always)
    aggregator.stop()
    aggregator.start()
    site.config_path.write_text(
        site.config_path.read_text().replace(site.config.aggregator.address, aggregator.address)
    )
    site.config = read_config(site.config_path, SiteConfig)
    site.run_until(lambda: len(aggregator.polls) >= 4)
    assert site.actions().count("task.declined") == 1
    assert any("offered again" in str(notice) for notice in site.notices)
