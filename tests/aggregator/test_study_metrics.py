"""What Prometheus is told: a study's course, its members and their lateness, refusals, certificates, disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fedmap.contract.v1 import values
from fedmap.errors import RejectedError, StorageError, TrainingError
from fedmap.files.digests import sha256_hex
from fedmap.process.telemetry import DiskSpace
from fedmap.study.course.questions import current_step
from tests.aggregator.centre import (
    OPERATOR,
    SILENT_AFTER,
    START,
    Centre,
    Site,
    failed,
    run_until,
    scripted,
)

STUDY = {"study": "small-binary"}


def read(centre: Centre, name: str, **labels: str) -> float | None:
    value = centre.metrics.registry.get_sample_value(f"fedmap_aggregator_{name}", labels)
    return None if value is None else float(value)


def of_study(centre: Centre, name: str, **labels: str) -> float | None:
    return read(centre, name, **STUDY, **labels)


def states(centre: Centre) -> dict[str, str]:
    """Where each member stands, by the one row that it has."""
    found: dict[str, str] = {}
    for family in centre.metrics.registry.collect():
        if family.name == "fedmap_aggregator_member_state":
            for sample in family.samples:
                assert sample.labels["site"] not in found
                found[sample.labels["site"]] = sample.labels["state"]
    return found


def test_answers_are_shown_against_the_quorum_until_the_task_closes(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    assert of_study(centre, "study_running") == 1
    assert (of_study(centre, "task_answers"), of_study(centre, "task_answers_needed")) == (0, 2)
    assert of_study(centre, "study_quorum") == of_study(centre, "live_sites") == 2
    pair[0].work(study)
    assert of_study(centre, "task_answers") == 1
    assert states(centre) == {"north": "answered", "south": "waiting"}
    deadline = of_study(centre, "task_deadline_timestamp_seconds")
    limit = of_study(centre, "study_step_limit_seconds")
    assert deadline is not None
    assert limit is not None
    assert deadline == START / 1000 + limit
    run_until(study, "complete", *pair)
    assert of_study(centre, "task_answers") is None
    assert of_study(centre, "task_deadline_timestamp_seconds") is None
    assert of_study(centre, "study_running") == 0
    assert states(centre) == {}


def test_the_figures_of_the_last_round_are_shown_and_survive_a_restart(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair, rounds=2)
    run_until(study, "rounds", *pair)
    assert of_study(centre, "round_loss") is None
    run_until(study, "complete", *pair)
    for _ in range(2):
        assert of_study(centre, "study_rounds_done") == of_study(centre, "study_rounds_planned") == 2
        assert of_study(centre, "round_loss") == pytest.approx(0.4)
        assert of_study(centre, "round_validation_loss") == pytest.approx(0.5)
        assert of_study(centre, "round_metric", metric="auroc", model="personal") == pytest.approx(0.8)
        assert of_study(centre, "round_metric", metric="auroc", model="global") == pytest.approx(0.7)
        assert of_study(centre, "round_largest_weight") == pytest.approx(0.5)
        assert of_study(centre, "round_answers") == 2
        centre.restart()


def test_a_round_without_scores_keeps_the_metric_of_the_round_before(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair, rounds=2)
    run_until(study, "rounds", *pair)
    for site in pair:
        site.work(study)
    for site in pair:
        task = site.asked()
        assert task.id == "round-2"
        answer, tensors = scripted(study, task, site.name)
        assert answer.fit is not None
        bare = replace(answer.fit, validation_scores=(), loss=None)
        site.submit(replace(answer, fit=bare), tensors)
    assert of_study(centre, "round_loss") is None
    assert of_study(centre, "round_metric", metric="auroc", model="personal") == pytest.approx(0.8)


def test_a_site_past_the_deadline_is_late_by_so_many_seconds(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    pair[0].work(study)
    centre.clock.now = centre.task(study).deadline_at + 90_000
    for site in pair:
        centre.service.heard(site.name, None)
    centre.service.pass_time(centre.clock.now)
    assert of_study(centre, "late_sites") == 1
    assert of_study(centre, "member_lateness_seconds", site="south") == 90
    assert of_study(centre, "member_lateness_seconds", site="north") == 0
    assert states(centre)["south"] == "late"
    assert read(centre, "site_last_seen_timestamp_seconds", site="south") == centre.clock.now / 1000


def test_a_silent_site_takes_the_quorum_with_it_and_brings_it_back(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    centre.started(*pair)
    centre.clock.now += SILENT_AFTER
    centre.service.heard("north", None)
    centre.service.pass_time(centre.clock.now)
    assert states(centre)["south"] == "silent"
    assert (of_study(centre, "live_sites"), of_study(centre, "silent_sites")) == (1, 1)
    centre.service.heard("south", None)
    assert of_study(centre, "live_sites") == 2


def test_progress_is_an_answer_or_a_closed_step_and_not_the_passing_of_time(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    name = "study_last_progress_timestamp_seconds"
    assert of_study(centre, name) == START / 1000
    centre.clock.now += 60_000
    centre.service.pass_time(centre.clock.now)
    assert of_study(centre, name) == START / 1000
    pair[0].work(study)
    assert of_study(centre, name) == START / 1000 + 60
    centre.clock.now += 60_000
    pair[1].work(study)
    assert current_step(centre.service.study("small-binary").state) == "initialise"
    assert of_study(centre, name) == START / 1000 + 120


def test_a_long_pause_does_not_look_like_a_stalled_study(centre: Centre, pair: tuple[Site, Site]) -> None:
    study = centre.started(*pair)
    centre.control(study, "pause")
    assert (of_study(centre, "study_paused"), of_study(centre, "study_running")) == (1, 0)
    centre.clock.now += 10 * 86_400_000
    centre.control(study, "resume")
    expected = centre.clock.now / 1000
    assert of_study(centre, "study_last_progress_timestamp_seconds") == expected
    centre.restart()
    assert of_study(centre, "study_last_progress_timestamp_seconds") == expected


def test_a_study_that_waits_for_approval_or_was_aborted_is_not_running(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.create("north", "south")
    assert of_study(centre, "study_running") == 0
    assert states(centre) == {"north": "invited", "south": "invited"}
    assert of_study(centre, "study_last_progress_timestamp_seconds") is None
    for site in pair:
        site.approve(study)
    centre.control(study, "abort")
    assert of_study(centre, "study_phase", phase="aborted") == 1
    assert states(centre) == {}


def test_a_computation_that_fails_for_good_is_counted_and_holds_the_study(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    centre.estimator.failures = [TrainingError("no result", hint="-")] * 3
    for site in pair:
        site.work(study)
    for _ in range(2):
        centre.clock.now += 60_000
        centre.service.compute_due()
    assert read(centre, "estimation_failures_total", **STUDY) == 3
    assert of_study(centre, "study_held") == 1


def test_a_failed_disk_during_a_computation_is_counted_and_does_not_hold_the_study(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    centre.estimator.failures = [StorageError("the disk is full", hint="-")]
    for site in pair:
        site.work(study)
    assert read(centre, "estimation_failures_total", **STUDY) == 1
    assert of_study(centre, "study_held") == 0


def test_refused_answers_are_counted_by_site_and_by_what_was_wrong(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    run_until(study, "rounds", *pair)
    answer, tensors = pair[0].ready(study)
    assert answer.fit is not None
    elsewhere = replace(answer, terms_digest="0" * 64)
    damaged = tensors[:-4] + b"\x00\x00\xc0\x7f"  # the last value is no number
    broken = replace(answer, tensors_digest=sha256_hex(damaged))
    heavy = replace(answer, fit=replace(answer.fit, log_omega=1e30))
    for refused, content in ((elsewhere, tensors), (broken, damaged), (heavy, tensors)):
        with pytest.raises(RejectedError):
            pair[0].submit(refused, content)
    count = "rejected_answers_total"
    for reason in ("header", "tensors", "content"):
        assert of_study(centre, count, site="north", reason=reason) == 1, reason
        assert of_study(centre, count, site="south", reason=reason) is None


def test_a_site_that_could_not_do_it_is_counted_with_its_code(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    centre.started(*pair)
    task = pair[0].asked()
    pair[0].submit(failed(task, "north", "data", "the site's data do not fit the plan"))
    assert of_study(centre, "failed_answers_total", site="north", code="data") == 1
    assert states(centre)["north"] == "failed"


def test_the_end_of_each_site_certificate_is_shown_until_the_site_is_revoked(centre: Centre) -> None:
    name = "site_certificate_ends_timestamp_seconds"
    for site in ("north", "south"):
        centre.enrolled(site)
    ends = read(centre, name, site="north")
    assert ends == pytest.approx(START / 1000 + 90 * 86_400, abs=3600)
    assert read(centre, name, site="south") == pytest.approx(ends)
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="south", reason="left"))
    assert read(centre, name, site="south") is None
    assert read(centre, "sites", state="revoked") == 1


def test_names_of_sites_and_studies_are_the_only_words_from_outside(
    centre: Centre, pair: tuple[Site, Site]
) -> None:
    study = centre.started(*pair)
    request = values.HeartbeatRequest(
        instance=values.AgentInstance(id="north", start=1),
        study=study.terms.study,
        task_id="Mrs Miller",
        stage="Ward 9",
    )
    centre.federation.heartbeat(pair[0].caller, request)
    text = generate_latest(centre.metrics.registry).decode()
    assert 'site="north"' in text
    for word in ("Miller", "Ward", "east"):
        assert word not in text


def test_a_disk_that_is_gone_shows_as_full(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(DiskSpace("fedmap_aggregator", tmp_path))
    free, size = (
        registry.get_sample_value(f"fedmap_aggregator_state_{what}_bytes") for what in ("free", "size")
    )
    assert free is not None
    assert size is not None
    assert 0 < free < size
    gone = CollectorRegistry()
    gone.register(DiskSpace("fedmap_aggregator", tmp_path / "gone"))
    assert gone.get_sample_value("fedmap_aggregator_state_free_bytes") == 0
