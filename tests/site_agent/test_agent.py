"""The run loop: what it does in every kind of weather, and that it never ends because of it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmap.contract.v1.values import FailureAnswer, Task
from fedmap.errors import (
    ConfigError,
    ConflictError,
    IntegrityError,
    NotAllowedError,
    RejectedError,
    StaleError,
    StorageError,
    UnreachableError,
)
from fedmap.files.durable import write_durably
from fedmap.study.answer_names import content_name
from fedmap.study.answers import Work, content_as
from fedmap.study.site_step import site_step
from fedmap.trust.pki import fits
from fedmap_site.exit import outbox
from fedmap_site.identity.files import read_identity, write_identity
from fedmap_site.loop import workplace
from fedmap_site.loop.agent import Backoff
from fedmap_site.loop.status import read_status, trouble_of
from tests.site_agent.federation_double import AggregatorDouble, now
from tests.site_agent.running_agent import AgentSite


@pytest.fixture
def aggregator() -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        yield double


@pytest.fixture
def site(tmp_path: Path, aggregator: AggregatorDouble) -> AgentSite:
    return AgentSite(tmp_path, aggregator)


def test_a_task_is_done_sent_and_ended_by_its_receipt(site: AgentSite, aggregator: AggregatorDouble) -> None:
    aggregator.tasks = [site.statistics(), site.fit()]
    site.run_until(lambda: len(aggregator.received) == 2 and len(aggregator.polls) >= 3)
    assert [content_name(answer) for answer, _ in aggregator.received] == ["statistics", "fit"]
    assert site.states() == {"toy.statistics.0": "sent", "toy.round-1.0": "sent"}
    model = site.config.site.state / "studies" / "toy" / "models" / "round-0001.safetensors"
    assert model.read_bytes() == aggregator.received[1][1]
    assert site.site().audit.verify().entries == len(site.actions())


def test_an_answer_whose_receipt_was_lost_is_sent_again_and_not_computed_again(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    performed: list[str] = []

    def noted(task: Task, *rest: Any) -> Work:
        performed.append(task.id)
        return site_step(task, *rest)

    monkeypatch.setattr(workplace, "site_step", noted)
    aggregator.lose_receipts = 2
    aggregator.tasks = [site.fit()]
    site.run_until(lambda: len(aggregator.received) == 3)
    assert performed == ["round-1"]
    assert len({answer for answer, _ in aggregator.received}) == 1


def test_a_restarted_agent_is_the_same_one_and_sends_what_was_left(
    tmp_path: Path, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = AgentSite(tmp_path, aggregator, egress="review")
    aggregator.tasks = [site.fit()]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    assert site.states() == {"toy.round-1.0": "waiting_review"}
    site.outbox.release("toy.round-1.0", "Dr Ada")
    monkeypatch.setattr(workplace, "site_step", lambda *_: pytest.fail("it was trained again"))
    site.run_until(lambda: aggregator.received)
    assert site.states() == {"toy.round-1.0": "sent"}
    first, last = aggregator.polls[0].instance, aggregator.polls[-1].instance
    assert first is not None
    assert (first.start, last) == (1, replace(first, start=2))


def test_an_answer_that_is_released_while_the_agent_waits_is_sent(
    tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    site = AgentSite(tmp_path, aggregator, egress="review")
    aggregator.tasks = [site.statistics()]
    with site.running():
        aggregator.wait_for(lambda: any(poll.in_hand for poll in aggregator.polls))
        assert not aggregator.received
        assert any("toy.statistics.0 waits in the outbox" in notice.message for notice in site.notices)
        site.outbox.release("toy.statistics.0", "Dr Ada")
        aggregator.wait_for(lambda: aggregator.received)
        aggregator.wait_for(lambda: any(beat.stage == "review" for beat in aggregator.beats))


def test_of_an_answer_that_the_reviewer_rejects_only_that_fact_leaves(
    tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    site = AgentSite(tmp_path, aggregator, egress="review")
    aggregator.tasks = [site.statistics()]
    with site.running():
        aggregator.wait_for(lambda: any(poll.in_hand for poll in aggregator.polls))
        site.outbox.reject("toy.statistics.0", "Dr Ada")
        aggregator.wait_for(lambda: aggregator.received)
    ((answer, tensors),) = aggregator.received
    assert content_as(FailureAnswer, answer).code == "withheld"
    assert tensors == b""


def test_a_task_under_terms_that_nobody_here_approved_is_declined_and_nothing_leaves(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    other = replace(site.statistics(), terms_digest="0" * 64)
    aggregator.tasks = [other, replace(site.statistics(), study="unknown")]
    site.run_until(lambda: any(len(poll.in_hand) == 2 for poll in aggregator.polls))
    assert aggregator.received == []
    assert site.actions().count("task.declined") == 2
    assert "not under the terms" in str(site.notices)


def test_a_study_that_is_approved_later_is_taken_up_without_a_restart(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    site.site().state.leave("toy")
    aggregator.tasks = [site.statistics()]
    with site.running():
        aggregator.wait_for(lambda: any(poll.in_hand for poll in aggregator.polls))
        site.site().state.approve(site.terms, "Dr Ada", 1, "p" * 64)
        aggregator.wait_for(lambda: aggregator.received)


@pytest.mark.parametrize("error", [StaleError, RejectedError, ConflictError])
def test_an_answer_that_is_refused_for_good_is_ended_with_the_reason(
    site: AgentSite, aggregator: AggregatorDouble, error: type[StaleError]
) -> None:
    aggregator.refuse["SubmitAnswer"] = error("the centre's reason", hint="the next step")
    aggregator.tasks = [site.statistics()]
    with site.running():
        site.wait_for_notice("the centre's reason")
        polls = len(aggregator.polls)
        aggregator.wait_for(lambda: len(aggregator.polls) > polls)
    (item,) = site.outbox.items()
    assert (item.status.state, item.status.code) == ("refused", error.code)
    assert item.status.reason == "the centre's reason"
    assert "outbox.refused" in site.actions()


def test_an_answer_that_arrives_damaged_stays_and_does_not_hold_up_the_next_task(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.refuse["SubmitAnswer"] = IntegrityError("the digest differs", hint="send it again")
    aggregator.tasks = [site.statistics()]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    assert site.states() == {"toy.statistics.0": "released"}


def test_an_answer_that_the_centre_has_lost_is_sent_again(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.tasks = [site.statistics()]
    site.run_until(lambda: aggregator.received)
    first = aggregator.received.pop()
    site.run_until(lambda: aggregator.received)
    assert aggregator.received == [first]


def test_an_aggregator_that_is_away_is_waited_for(tmp_path: Path) -> None:
    double = AggregatorDouble()
    double.start()
    double.stop()
    site = AgentSite(tmp_path, double)
    with site.running():
        site.wait_for_notice("refuse")
        assert read_status(site.config.site.state).condition == "waiting"  # type: ignore[union-attr]
        assert "refuse" in str(trouble_of(site.config.site.state))
        double.start()
        double.wait_for(lambda: double.polls)
        assert trouble_of(site.config.site.state) is None
        double.stop()
    assert read_status(site.config.site.state).condition == "stopped"  # type: ignore[union-attr]


def test_a_revoked_site_says_so_goes_on_asking_and_recovers(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.refuse["Hello"] = NotAllowedError("the certificate was revoked", hint="ask the operator")
    aggregator.tasks = [site.statistics()]
    with site.running():
        notice = site.wait_for_notice("revoked")
        assert notice.hint == "ask the operator"
        del aggregator.refuse["Hello"]
        aggregator.wait_for(lambda: aggregator.received)


def test_a_second_agent_with_this_identity_is_told_apart_and_goes_on_asking(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.refuse["NextTask"] = ConflictError("another agent uses this identity", hint="stop one")
    with site.running():
        site.wait_for_notice("another agent")
        del aggregator.refuse["NextTask"]
        aggregator.wait_for(lambda: aggregator.polls)


def test_a_second_agent_in_the_same_folder_is_refused(site: AgentSite, aggregator: AggregatorDouble) -> None:
    with site.running():
        aggregator.wait_for(lambda: aggregator.polls)
        with pytest.raises(StorageError, match="another process"), site.running():
            pass
    site.run_until(lambda: len(aggregator.polls) > 1)


def test_without_a_readable_policy_nothing_starts(site: AgentSite) -> None:
    site.policy_path.unlink()
    with pytest.raises(ConfigError), site.running():
        pass


def test_a_policy_that_breaks_while_the_agent_runs_stops_everything_until_it_is_mended(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    with site.running():
        aggregator.wait_for(lambda: aggregator.polls)
        site.policy_path.write_text("egress = nonsense")
        aggregator.offer(site.statistics())
        site.wait_for_notice("policy.toml")
        assert aggregator.received == []
        site.write_policy("automatic")
        aggregator.wait_for(lambda: aggregator.received)


def test_data_that_do_not_fit_leave_as_a_bare_failure_and_the_reason_stays(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    (site.folder / "patients.csv").write_text("wrong,columns\n1,planted-identifier\n")
    aggregator.tasks = [site.statistics()]
    site.run_until(lambda: aggregator.received)
    ((answer, _),) = aggregator.received
    assert content_as(FailureAnswer, answer).code == "data"
    assert "column" in str(site.notices)
    assert "planted-identifier" not in str(site.notices) + str(answer)


def test_a_crash_inside_the_work_fails_the_task_and_not_the_agent(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise MemoryError("planted-identifier")

    monkeypatch.setattr(workplace, "site_step", crash)
    aggregator.tasks = [site.statistics()]
    site.run_until(lambda: aggregator.received and len(aggregator.polls) > 1)
    assert content_as(FailureAnswer, aggregator.received[0][0]).code == "training"
    assert "planted-identifier" not in str(site.notices)


def test_a_full_disk_is_told_and_the_task_is_done_once_there_is_space(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    def write(path: Path, data: bytes, mode: int = 0o600) -> None:
        if full:
            raise StorageError("the disk is full", hint="free some space")
        write_durably(path, data, mode)

    monkeypatch.setattr(outbox, "write_durably", write)
    aggregator.tasks = [site.statistics()]
    with site.running():
        site.wait_for_notice("the disk is full")
        full = False
        aggregator.wait_for(lambda: aggregator.received)
    assert content_name(aggregator.received[0][0]) == "statistics"


def test_a_wrong_clock_is_told(site: AgentSite, aggregator: AggregatorDouble) -> None:
    aggregator.clock_offset_ms = -600_000
    with site.running():
        assert "ahead of" in site.wait_for_notice("clock").message


def test_the_certificate_is_renewed_while_the_agent_runs(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    old = aggregator.authority.site("a", 10, now() - datetime.timedelta(days=9))
    write_identity(site.config.site.state, old)
    aggregator.tasks = [site.statistics()]
    site.run_until(lambda: aggregator.received)
    fresh = read_identity(site.config.site.state)
    assert fresh.key != old.key
    assert fits(fresh.key, fresh.certificate)
    assert aggregator.certificates_issued == 1
    assert "certificate.renewed" in site.actions()


def test_signs_of_life_carry_the_task_and_its_stage(site: AgentSite, aggregator: AggregatorDouble) -> None:
    aggregator.tasks = [site.fit()]
    site.run_until(lambda: any(beat.task_id == "round-1" for beat in aggregator.beats))
    assert {beat.study for beat in aggregator.beats} == {"toy"}


def test_an_idle_agent_sends_no_signs_of_life_beside_its_polls(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    site.run_until(lambda: len(aggregator.polls) >= 2)
    assert aggregator.beats == []


def test_waits_grow_with_jitter_up_to_the_longest_and_a_shut_door_is_knocked_at_rarely() -> None:
    backoff, away = Backoff(60.0), UnreachableError("away", hint="wait")
    waits = [backoff.next(away) for _ in range(12)]
    assert all(0.5 * min(60, 2**i) <= wait <= min(60, 2**i) for i, wait in enumerate(waits))
    backoff.reset()
    assert backoff.next(away) <= 1.0
    assert backoff.next(NotAllowedError("revoked", hint="ask")) >= 30.0


def test_a_stop_while_the_aggregator_holds_the_poll_ends_the_agent_cleanly(
    site: AgentSite, aggregator: AggregatorDouble
) -> None:
    with site.running():
        aggregator.wait_for(lambda: aggregator.polls)
    assert site.actions()[-1] == "agent.stopped"


def test_what_is_purged_while_its_task_is_done_neither_comes_back_nor_is_sent(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def purged_meanwhile(task: Task, *rest: Any) -> Work:
        work = site_step(task, *rest)
        other = site.site()  # `fedmap-site leave` and `purge`, in another terminal
        other.state.leave("toy")
        other.purge().purge("toy", "Dr Ada")
        other.state.prior_path("toy", "a" * 64).write_bytes(b"a prior that was still on its way")
        return work

    monkeypatch.setattr(workplace, "site_step", purged_meanwhile)
    aggregator.tasks = [site.fit()]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    assert not aggregator.received
    assert site.states() == {}
    assert not (site.config.site.state / "studies" / "toy").exists()
    assert site.actions()[-3:-1] == ["study.purged", "task.declined"]


def test_no_failure_is_told_of_a_study_that_the_site_left_during_its_task(
    site: AgentSite, aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_meanwhile(*_: Any) -> Work:
        site.site().state.leave("toy")
        raise RejectedError("no good", hint="none")

    monkeypatch.setattr(workplace, "site_step", left_meanwhile)
    aggregator.tasks = [site.fit()]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    assert not aggregator.received
    assert site.states() == {}
