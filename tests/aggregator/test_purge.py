"""A study's content deleted for good: what goes, what stays, and what the certificate says of it."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from fedmap.contract.v1 import values
from fedmap.errors import NotFoundError, RejectedError, ServiceError, StateError, StorageError
from fedmap.files.durable import DurableWriter, FolderLock
from fedmap.process.fault_points import VARIABLE
from fedmap.trust.deletion import DeletionRecord, Trust, read_deletion
from fedmap_aggregator.config import RetentionSection
from fedmap_aggregator.upkeep.purge import StudyPurge
from fedmap_aggregator.upkeep.retention import Retention
from tests.aggregator import small_study as made
from tests.aggregator.centre import OPERATOR, Centre, Site, centre_in, run_until, scripted
from tests.aggregator.releases import (
    DAY_MS,
    finish,
    make_finished,
    release,
    reopened,
    verified,
    withdraw,
)
from tests.forked_programs import run_forked

STUDY = "small-binary"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_finished(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def centre(finished: Path, tmp_path: Path) -> Iterator[Centre]:
    with reopened(finished, tmp_path) as opened:
        yield opened


@contextmanager
def in_rounds(folder: Path) -> Iterator[tuple[Centre, tuple[Site, Site], made.Small, values.Task]]:
    """A study of today, and what its first site is asked in the first round."""
    with centre_in(folder) as centre:
        centre.clock.now = int(time.time() * 1000)
        sites = centre.enrolled("north"), centre.enrolled("south")
        study = centre.started(*sites)
        run_until(study, "rounds", *sites)
        task = sites[0].asked()
        yield centre, sites, study, task


def purge(
    centre: Centre, *, dry_run: bool = False, with_bundles: bool = False, study: str = STUDY
) -> values.PurgeStudyResponse:
    request = values.PurgeStudyRequest(study=study, dry_run=dry_run, with_bundles=with_bundles)
    return centre.purges.purge(OPERATOR, request)


def certificate(centre: Centre, study: str = STUDY) -> DeletionRecord:
    data = b"".join(centre.purges.fetch(values.FetchDeletionRequest(study=study)))
    return read_deletion(data, Trust({centre.release_key.fingerprint}))[0]


def kept(centre: Centre) -> set[str]:
    return {path.name for path in (centre.folder / "blobs" / "kept").glob("*/*")}


def actions(centre: Centre) -> list[tuple[str, str, str]]:
    with centre.store.reading() as transaction:
        transaction.audit.verify()
        return [(entry.actor, entry.action, entry.subject) for entry in transaction.audit.entries()]


def test_a_purge_deletes_everything_that_the_sites_sent_and_says_so(centre: Centre) -> None:
    before = kept(centre)
    counted = purge(centre, dry_run=True)
    assert kept(centre) == before
    assert not counted.done
    done = purge(centre)
    assert (done.answers, done.files, done.bytes) == (counted.answers, counted.files, counted.bytes)
    assert done.answers >= 8
    assert kept(centre) == set()
    with centre.store.reading() as transaction:
        assert transaction.answers.list(STUDY, "round-1") == ()
        assert transaction.results.list(STUDY) == ()
    said = certificate(centre)
    assert {one.sha256 for one in said.deleted if one.kind == "blob"} == before
    assert (said.actor, said.study, said.rows["answers"]) == ("operator:kim", STUDY, done.answers)
    assert actions(centre)[-2:] == [
        ("operator:kim", "study.purge", STUDY),
        ("operator:kim", "study.purged", STUDY),
    ]
    with centre.store.reading() as transaction:
        assert (said.audit_entries, said.audit_head) == (
            transaction.audit.verify().entries,
            transaction.audit.verify().hash,
        )


def test_what_is_left_of_a_purged_study_is_its_record(centre: Centre) -> None:
    purge(centre)
    for _ in range(2):
        (status,) = centre.operator.get_status(values.GetStatusRequest(study=STUDY)).studies
        assert (status.phase, status.prior_digest, len(status.history)) == ("complete", "", 0)
        assert status.purged_unix_ms == centre.clock()
        assert len(status.members) == 2
        centre.restart()
    with pytest.raises(StateError, match="was deleted"):
        release(centre)


def test_the_figures_of_a_purged_study_are_not_served_until_the_next_start(centre: Centre) -> None:
    def figures() -> set[str]:
        page = generate_latest(centre.metrics.registry).decode()
        return {line.partition("{")[0] for line in page.splitlines() if f'study="{STUDY}"' in line}

    before = figures()
    purge(centre)
    after = figures()
    assert before - after
    centre.restart()
    assert after == figures()


def test_a_purge_repeated_changes_nothing_and_gives_the_same_certificate(centre: Centre) -> None:
    first = purge(centre)
    entries, said = actions(centre), certificate(centre)
    centre.clock.now += DAY_MS
    assert purge(centre) == first
    assert purge(centre, dry_run=True).done
    assert (actions(centre), certificate(centre)) == (entries, said)


def test_a_study_that_has_not_ended_is_not_purged(tmp_path: Path) -> None:
    with centre_in(tmp_path) as centre:
        study = finish(centre, phase="rounds")
        for dry_run in (True, False):
            with pytest.raises(StateError, match="has not ended") as refused:
                purge(centre, dry_run=dry_run)
            assert "study abort" in refused.value.hint
        centre.control(study, "abort")
        assert purge(centre).done
        assert kept(centre) == set()


def test_an_unknown_study_and_a_name_that_is_none_are_refused(centre: Centre) -> None:
    with pytest.raises(NotFoundError):
        purge(centre, study="nobody")
    with pytest.raises(RejectedError):
        purge(centre, study="../state")
    with pytest.raises(StateError, match="nothing of small-binary was deleted"):
        certificate(centre)


def test_what_another_study_needs_stays(centre: Centre) -> None:
    """The same seed gives both studies the same statistics: one blob, two owners."""
    with centre.store.reading() as transaction:
        mine = transaction.blob_names.of_study(STUDY)
    finish(centre, name="second")
    with centre.store.reading() as transaction:
        shared = mine & transaction.blob_names.of_study("second")
    assert shared
    purge(centre)
    assert shared <= kept(centre)
    assert centre.purge.plan("second", with_bundles=False).deleted
    with centre.store.reading() as transaction:
        assert transaction.blob_names.all() <= kept(centre)
    purge(centre, study="second")
    assert kept(centre) == set()


def test_released_bundles_stay_good_after_a_purge(centre: Centre) -> None:
    bundle = release(centre).bundle
    done = purge(centre)
    assert list(done.bundles_kept) == [bundle.file_name]
    verified(centre, bundle)
    assert any(bundle.file_name in one for one in certificate(centre).kept)
    assert centre.releases.list_released(values.ListReleasedRequest()).bundles[0].title


def test_files_of_bundles_go_only_when_all_are_withdrawn(centre: Centre) -> None:
    first, second = release(centre).bundle, release(centre, tier=3).bundle
    withdraw(centre, first)
    with pytest.raises(StateError, match=f"{second.file_name} is released and not withdrawn"):
        purge(centre, with_bundles=True)
    withdraw(centre, second)
    _, before = centre.catalogue.withdrawals()
    done = purge(centre, with_bundles=True)
    assert sorted(done.bundles_deleted) == sorted([first.file_name, second.file_name])
    assert not {first.sha256, second.sha256} & kept(centre)
    assert centre.catalogue.withdrawals()[1] == before  # the list of withdrawals only grows
    with pytest.raises(NotFoundError, match="was deleted with the content of its study"):
        list(centre.releases.download(values.DownloadBundleRequest(name=first.name, version=first.version)))


def test_bundles_that_a_purge_left_are_not_said_to_be_deleted_by_the_next(centre: Centre) -> None:
    bundle = release(centre).bundle
    first = purge(centre)
    withdraw(centre, bundle)
    with pytest.raises(StateError, match=f"{bundle.file_name} stays") as refused:
        purge(centre, with_bundles=True)
    assert "--with-bundles" in refused.value.hint
    assert bundle.sha256 in kept(centre)
    assert purge(centre) == first


def test_refused_bytes_in_quarantine_go_with_their_study(tmp_path: Path) -> None:
    with in_rounds(tmp_path) as (centre, sites, study, task):
        answer, tensors = scripted(study, task, "north")
        bad = made.poisoned(tensors, "buffers.mean", float("nan"))
        answer = replace(answer, tensors_digest=hashlib.sha256(bad).hexdigest())
        with pytest.raises(RejectedError):
            sites[0].submit(answer, bad)
        quarantine = centre.folder / "blobs" / "quarantine"
        assert [path.name for path in quarantine.iterdir()] == [answer.tensors_digest]
        centre.control(study, "abort")
        purge(centre)
        assert list(quarantine.iterdir()) == []
        assert "quarantine" in {one.kind for one in certificate(centre).deleted}


def test_a_site_that_sends_a_text_for_a_digest_blocks_no_purge(tmp_path: Path) -> None:
    with in_rounds(tmp_path) as (centre, sites, study, task):
        answer, tensors = scripted(study, task, "north")
        with pytest.raises(RejectedError):
            sites[0].submit(replace(answer, tensors_digest="x"), tensors)
        centre.control(study, "abort")
        assert purge(centre, dry_run=True).files
        assert purge(centre).done
        assert kept(centre) == set()


def test_what_a_crash_left_without_a_row_goes_too_but_not_what_arrives_now(centre: Centre) -> None:
    blobs = centre.store.blobs
    old, new = blobs.put(b"of an upload that was cut off"), blobs.put(b"of one that arrives now")
    then = centre.clock() / 1000 - 2 * 86_400
    os.utime(blobs.path(old), (then, then))
    centre.clock.now = int(blobs.path(new).stat().st_mtime * 1000)
    purge(centre)
    assert kept(centre) == {new}


def test_a_prior_that_was_computed_during_an_abort_does_not_outlive_the_purge(tmp_path: Path) -> None:
    with in_rounds(tmp_path) as (centre, sites, study, _):
        centre.estimator.meanwhile = lambda: centre.control(study, "abort")
        for site in sites:
            site.work(study)
        assert centre.status(study).phase == "aborted"
        purge(centre)
        assert kept(centre) == set()


def test_an_answer_that_came_too_late_does_not_outlive_the_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_rounds(tmp_path) as (centre, sites, study, task):
        keep = centre.store.blobs.keep

        def keep_and_abort(writer: DurableWriter, digest: str) -> Path:
            path = keep(writer, digest)
            centre.control(study, "abort")
            return path

        monkeypatch.setattr(centre.store.blobs, "keep", keep_and_abort)
        with pytest.raises(ServiceError):
            sites[0].submit(*scripted(study, task, "north"))
        purge(centre)
        assert kept(centre) == set()


def test_a_purge_waits_its_turn_while_a_backup_is_made(centre: Centre) -> None:
    with (
        FolderLock(centre.folder / "upkeep.lock"),
        pytest.raises(StorageError, match="another process"),
    ):
        purge(centre)
    assert purge(centre).done


KILLED = """
import sys
from pathlib import Path
from tests.aggregator.centre import Centre
centre = Centre(Path(sys.argv[1]))
centre.purge.purge(sys.argv[2], with_bundles=False, actor="operator:kim")
"""


@pytest.mark.parametrize("point", ["purge_begun", "purging_files", "purge_files_gone"])
def test_a_purge_that_is_killed_is_finished_at_the_next_start(
    finished: Path, tmp_path: Path, point: str
) -> None:
    with reopened(finished, tmp_path) as centre:
        before, bundle = kept(centre), release(centre).bundle
        folder = centre.folder
    environment = {**os.environ, VARIABLE: f"aggregator.{point}"}
    killed = run_forked("-c", [KILLED, str(folder), STUDY], environment, tmp_path)
    assert killed.returncode == -signal.SIGKILL
    with centre_in(folder) as centre:
        (status,) = centre.operator.get_status(values.GetStatusRequest(study=STUDY)).studies
        assert status.purged_unix_ms  # the rows went first, all together
        entries, left = actions(centre), kept(centre)
        assert not purge(centre, dry_run=True).done
        assert (actions(centre), kept(centre)) == (entries, left), "counting finished the deletion"
        with FolderLock(centre.folder / "upkeep.lock"):  # a backup is being made
            centre.purge.finish_interrupted()  # the start goes on
        assert (actions(centre), kept(centre)) == (entries, left)
        centre.purge.finish_interrupted()
        assert not kept(centre) & before
        verified(centre, bundle)
        said = certificate(centre)
        assert {one.sha256 for one in said.deleted if one.kind == "blob"} == before
        done = [entry for entry in actions(centre) if entry[1] == "study.purged"]
        assert len(done) == 1
        assert purge(centre).done


def retention(centre: Centre, **settings: int) -> Retention:
    return Retention(RetentionSection(**settings), centre.service, centre.store, centre.purge, centre.clock)


def test_nothing_is_deleted_by_itself_unless_asked_for(centre: Centre) -> None:
    before = kept(centre)
    centre.clock.now += 10_000 * DAY_MS
    retention(centre).run()
    assert kept(centre) == before


def test_an_ended_study_is_purged_when_its_time_is_up_and_not_before(centre: Centre) -> None:
    second = finish(centre, name="second", phase="rounds")
    rule = retention(centre, days_after_end=30)
    centre.clock.now += 29 * DAY_MS
    rule.run()
    assert centre.purge.deletion(STUDY) is None
    centre.clock.now += DAY_MS + 1
    rule.run()
    assert certificate(centre).actor == "retention"
    assert centre.service.study(second.terms.study).state.purged_at is None  # it has not ended
    rule.run()
    assert ("retention", "study.purged", STUDY) in actions(centre)


def test_a_study_that_cannot_be_deleted_does_not_keep_the_others(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(centre, name="a-first")
    whole = StudyPurge.purge

    def purge_of_most(purge: StudyPurge, name: str, with_bundles: bool, actor: str) -> DeletionRecord:
        if name == "a-first":
            raise StorageError("the disk is broken", hint="mend it")
        return whole(purge, name, with_bundles, actor)

    monkeypatch.setattr(StudyPurge, "purge", purge_of_most)
    centre.clock.now += 31 * DAY_MS
    retention(centre, days_after_end=30).run()
    assert certificate(centre).actor == "retention"


def test_pruned_rounds_lose_their_files_and_the_study_goes_on_to_the_same_model(tmp_path: Path) -> None:
    with centre_in(tmp_path / "whole") as whole:
        finish(whole, rounds=4)
        expected = whole.service.study(STUDY).state.prior_digest
    with centre_in(tmp_path / "pruned") as centre:
        sites = tuple(centre.enrolled(f"{STUDY}-{side}") for side in ("north", "south"))
        study = centre.started(*sites, rounds=4)
        rule = retention(centre, keep_rounds=1)
        for _ in range(40):
            for site in sites:
                if site.next_task() is not None:
                    site.work(study)
                rule.run()
        state = centre.service.study(STUDY).state
        assert (state.phase, state.prior_digest) == ("complete", expected)
        with centre.store.reading() as transaction:
            priors = {row.task: row.prior_digest for row in transaction.results.list(STUDY)}
            named = transaction.blob_names.all()
        assert [priors[f"round-{number}"] != "" for number in (1, 2, 3, 4)] == [False, False, False, True]
        assert named == kept(centre)
        with pytest.raises(StateError, match=r"deleted by retention\.keep_rounds"):
            release(centre, round_number=2)
        verified(centre, release(centre).bundle)
        assert ("retention", "study.prune", STUDY) in actions(centre)
