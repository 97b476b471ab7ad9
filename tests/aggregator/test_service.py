"""A study from approval to its end; what a restart, a full disk, a silent site and a failed computation
do to it.
"""

from __future__ import annotations

import threading

import pytest

from fedmap.contract.v1 import values
from fedmap.errors import ConflictError, NotFoundError, StateError, StorageError, TrainingError
from fedmap.study.course.events import Paused
from fedmap_aggregator.store import Transaction
from fedmap_aggregator.studies.polls import Poll
from tests.aggregator.centre import OPERATOR, SILENT_AFTER, Centre, run_until


def test_a_study_goes_from_approval_to_complete_and_the_status_tells_its_story(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south, rounds=2)
    run_until(study, "complete", north, south)
    status = centre.status(study)
    assert [(r.round, r.answered, r.members) for r in status.history] == [(1, 2, 2), (2, 2, 2)]
    assert status.history[0].loss == pytest.approx(0.4)
    assert status.history[1].personal_metric == pytest.approx(0.8)
    assert status.history[0].largest_weight == pytest.approx(0.5)
    values = {(s.site, s.model): s.value if s.value is not None else None for s in status.scores}
    assert values == {
        ("north", "personal"): 0.81,
        ("north", "global"): None,
        ("south", "personal"): 0.81,
        ("south", "global"): None,
    }
    assert {s.region for s in status.scores} == {"east"}
    assert centre.operator.verify_audit().entries > 10


def test_the_rule_reaches_the_sites_with_the_evaluation(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south, rounds=1)
    run_until(study, "evaluation", north, south)
    task = north.asked()
    assert task.rule is not None
    assert task.rule.threshold == pytest.approx(0.4)


def test_after_a_restart_the_study_is_where_it_was(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    north.work(study)
    centre.restart()
    assert north.next_task() is None
    south.work(study)
    assert centre.status(study).phase == "initialisation"


def test_a_computation_that_a_crash_cut_off_is_done_again_after_the_start(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    centre.estimator.at_once = False
    north.work(study)
    south.work(study)
    assert centre.status(study).computing
    centre.restart()
    assert centre.status(study).phase == "initialisation"
    assert [request.kind for request in centre.estimator.asked] == ["statistics"]


def test_a_computation_under_way_is_not_started_a_second_time(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    centre.estimator.at_once = False
    north.work(study)
    south.work(study)
    centre.service.compute_due()
    centre.estimator.compute()
    assert len(centre.estimator.asked) == 1
    assert centre.status(study).phase == "initialisation"


def test_a_computation_that_failed_once_is_tried_again_after_a_pause(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    centre.estimator.failures = [TrainingError("the process was killed", hint="-")]
    north.work(study)
    south.work(study)
    centre.service.compute_due()
    assert len(centre.estimator.asked) == 1, "there is a pause first"
    centre.clock.now += 60_000
    centre.service.compute_due()
    assert centre.status(study).phase == "initialisation"


def test_a_computation_that_fails_three_times_holds_the_study_until_the_operator_resumes(
    centre: Centre,
) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    centre.estimator.failures = [TrainingError("no result", hint="-")] * 3
    north.work(study)
    south.work(study)
    for _ in range(2):
        centre.clock.now += 120_000
        centre.service.compute_due()
    status = centre.status(study)
    assert status.paused
    assert "no result" in status.waiting_for
    assert centre.control(study, "resume") == "initialisation"


def test_an_aborted_study_takes_no_late_result(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    centre.estimator.meanwhile = lambda: centre.control(study, "abort")
    north.work(study)
    south.work(study)
    assert centre.status(study).phase == "aborted"


def test_a_full_disk_leaves_the_study_unchanged_and_the_answer_can_be_sent_again(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)

    def full(*_: object) -> None:
        raise StorageError("the disk is full", hint="-")

    with monkeypatch.context() as patch:
        patch.setattr("fedmap_aggregator.store.study_records.StudyRecords.save", full)
        with pytest.raises(StorageError):
            north.work(study)
    assert {m.site: m.answer for m in centre.status(study).members} == {
        "north": "waiting",
        "south": "waiting",
    }
    north.work(study)
    assert {m.site: m.answer for m in centre.status(study).members}["north"] == "accepted"


def test_what_is_stored_with_an_event_fails_with_it(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)

    def fail(_: Transaction) -> None:
        raise StorageError("no", hint="-")

    with pytest.raises(StorageError):
        centre.service.apply(study.terms.study, Paused(centre.clock()), None, fail)
    assert not centre.status(study).paused


def test_a_second_aggregator_on_the_same_database_is_noticed_and_the_site_tries_again(
    centre: Centre,
) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    with centre.store.transaction() as transaction:
        row = transaction.studies.load(study.terms.study)
        transaction.studies.save(row.name, row.state_json, row.version)
    with pytest.raises(StorageError, match="another program"):
        north.work(study)


def test_a_deadline_passes_without_any_call(centre: Centre) -> None:
    sites = [centre.enrolled(name) for name in ("east", "north", "south")]
    study = centre.started(*sites)
    for site in sites[:2]:
        site.work(study)
    centre.clock.now = centre.task(study).deadline_at
    centre.service.pass_time(centre.clock.now)
    status = centre.status(study)
    assert status.phase == "initialisation"
    assert [m.site for m in status.members if m.membership == "excluded"] == ["south"]


def test_the_clock_is_told_when_the_next_deadline_or_silence_is(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    centre.started(north, south)
    assert centre.service.pass_time(centre.clock.now) == centre.clock.now + SILENT_AFTER


def test_a_silent_site_is_not_waited_for_and_comes_back_with_its_next_call(centre: Centre) -> None:
    sites = [centre.enrolled(name) for name in ("east", "north", "south")]
    study = centre.started(*sites)
    run_until(study, "rounds", *sites)
    centre.clock.now += SILENT_AFTER
    for site in sites[:2]:
        site.work(study)
    assert centre.status(study).task_id == "round-1"
    centre.service.pass_time(centre.clock.now)
    status = centre.status(study)
    assert status.task_id == "round-2"
    assert [m.site for m in status.members if m.silent] == ["south"]
    assert sites[2].next_task() is not None
    assert not [m.site for m in centre.status(study).members if m.silent]


def test_a_site_that_works_by_files_is_never_silent_even_after_a_restart(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    centre.service.heard_by_file("south")
    centre.restart()
    centre.clock.now += SILENT_AFTER
    centre.service.pass_time(centre.clock.now)
    assert [m.site for m in centre.status(study).members if m.silent] == ["north"]
    south.next_task()
    centre.clock.now += SILENT_AFTER
    centre.service.pass_time(centre.clock.now)
    assert [m.site for m in centre.status(study).members if m.silent] == ["north", "south"]


def test_a_waiting_agent_is_woken_by_a_new_task(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.create("north", "south")
    north.approve(study)
    south.approve(study)
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(north.next_task(wait_seconds=60)))
    waiting.start()
    centre.control(study, "start")
    waiting.join(30)
    assert found
    assert found[0] is not None


def test_waiting_agents_go_home_when_the_server_stops(centre: Centre) -> None:
    north = centre.enrolled("north")
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(north.next_task(wait_seconds=60)))
    waiting.start()
    centre.service.stop_polls()
    waiting.join(30)
    assert found == [None]
    assert north.next_task(wait_seconds=60) is None, "nobody waits at a server that stops"


def test_an_agent_that_hangs_up_frees_its_thread(centre: Centre) -> None:
    poll = Poll()
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(centre.service.next_task("x", (), 60, poll)))
    waiting.start()
    poll.leave()
    waiting.join(30)
    assert found == [None]


def test_more_waiting_agents_than_allowed_are_answered_at_once(centre: Centre) -> None:
    polls = [Poll() for _ in range(16)]
    threads = [threading.Thread(target=centre.service.next_task, args=("x", (), 60, p)) for p in polls]
    for thread in threads:
        thread.start()
    while len(centre.service._polls._polls) < 16:
        threading.Event().wait(0.001)
    assert centre.service.next_task("x", (), 60, Poll()) is None
    for poll in polls:
        poll.leave()
    for thread in threads:
        thread.join(30)


def test_a_task_in_hand_is_not_handed_out_again_but_a_new_attempt_is(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    name, task = study.terms.study, centre.task(study)
    assert centre.service.next_task("north", {(name, task.id, 1)}, 0, Poll()) is None
    assert centre.service.next_task("north", {(name, task.id, 2)}, 0, Poll()) is not None


def test_the_same_study_again_changes_nothing_and_other_terms_conflict(centre: Centre) -> None:
    centre.enrolled("north"), centre.enrolled("south")
    first = centre.create("north", "south")
    assert centre.create("north", "south").terms.digest == first.terms.digest
    with pytest.raises(ConflictError):
        centre.create("north", "south", rounds=7)


def test_an_unknown_study_is_not_found(centre: Centre) -> None:
    with pytest.raises(NotFoundError):
        centre.operator.get_status(values.GetStatusRequest(study="no-such-study"))


def test_a_start_below_quorum_names_who_is_missing(centre: Centre) -> None:
    north = centre.enrolled("north")
    centre.enrolled("south")
    study = centre.create("north", "south")
    north.approve(study)
    with pytest.raises(StateError) as caught:
        centre.control(study, "start")
    assert "south" in caught.value.hint


def test_a_revoked_site_leaves_its_studies_and_the_others_go_on(centre: Centre) -> None:
    sites = [centre.enrolled(name) for name in ("east", "north", "south")]
    study = centre.started(*sites)
    for site in sites[:2]:
        site.work(study)
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="south", reason="key lost"))
    status = centre.status(study)
    assert status.phase == "initialisation"
    assert [m.reason for m in status.members if m.site == "south"] == ["revoked by the operator"]


def test_the_metrics_tell_phase_rounds_and_open_tasks(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south, rounds=1)
    read = centre.metrics.registry.get_sample_value
    labels = {"study": study.terms.study}
    assert read("fedmap_aggregator_open_tasks", labels) == 1
    run_until(study, "complete", north, south)
    assert read("fedmap_aggregator_rounds_completed_total", labels) == 1
    assert read("fedmap_aggregator_study_phase", {**labels, "phase": "complete"}) == 1
    assert read("fedmap_aggregator_sites", {"state": "active"}) == 2
    received = read("fedmap_aggregator_bytes_total", {"direction": "in"})
    assert received is not None
    assert received > 0
