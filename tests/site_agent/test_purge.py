"""What a site keeps of a study, deleted for good, with a certificate signed by its own key."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
from pathlib import Path

import pytest

from fedmap.errors import NotFoundError, StateError
from fedmap.process.fault_points import VARIABLE
from fedmap.study.plan.reading import parse_plan
from fedmap.study.terms import StudyTerms
from fedmap.trust.deletion import DeletionRecord, Trust, read_deletion
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap_site.exit.outbox import Outbox
from fedmap_site.identity.files import SiteIdentity, read_identity, write_identity
from fedmap_site.state.audit_log import AuditLog
from fedmap_site.state.studies import DataRecord, SiteState
from fedmap_site.upkeep.purge import ACTOR, SitePurge, SiteRetention
from tests.aggregator.small_study import BINARY
from tests.forked_programs import run_forked

NOW = datetime.datetime.now(datetime.UTC)
DAY_MS = 86_400_000
STUDY = "small-binary"


class Clock:
    def __init__(self) -> None:
        self.now = int(NOW.timestamp() * 1000)

    def __call__(self) -> int:
        return self.now


class Keeping:
    """A site's state folder with a study in it, and one that is somebody else's business."""

    def __init__(self, folder: Path, *, fill: bool = True) -> None:
        self.clock = Clock()
        self.state = SiteState(folder)
        self.state.prepare()
        self.audit = AuditLog(self.state.audit_path, self.clock)
        self.outbox = Outbox(self.state.outbox_folder, self.audit, self.clock)
        if fill:
            self.authority = self._enrol()
            for study in (STUDY, "another"):
                self._take_part(study)
        self.purge = SitePurge(
            "north", "0.2.0", self.state, self.outbox, self.audit, lambda: read_identity(folder), self.clock
        )

    def _enrol(self) -> bytes:
        authority, _ = CertificateAuthority.create("test", 3650, NOW)
        key = new_key()
        certificate = authority.issue(key.public_key(), Identity("site", "north"), 90, NOW)
        identity = SiteIdentity(key_pem(key), certificate, authority.certificate_pem)
        write_identity(self.state.folder, identity)
        return authority.certificate_pem

    def _take_part(self, study: str) -> None:
        plan = parse_plan(BINARY.replace(STUDY, study), "plan")
        self.state.approve(StudyTerms.of_plan(plan, 2, 5), "kim", self.clock(), "p" * 64)
        self.state.remember_data(study, DataRecord(digest="d" * 64, name="patients.csv"))
        folder = self.state.study_folder(study)
        (folder / "models" / "round-0001.safetensors").write_bytes(b"theta of " + study.encode())
        self.state.prior_path(study, "a" * 64).write_bytes(b"prior of " + study.encode())
        for task in ("statistics", "round-1"):
            item = self.state.outbox_folder / f"{study}.{task}.1"
            item.mkdir()
            (item / "tensors.safetensors").write_bytes(b"answer of " + study.encode())

    def left(self, study: str = STUDY) -> list[Path]:
        """Every file of the study that is still there."""
        inside = [path for path in self.state.folder.rglob("*") if path.is_file()]
        return [
            path for path in inside if study.encode() in path.read_bytes() and "deletions" not in path.parts
        ]

    def said(self, path: Path) -> DeletionRecord:
        return read_deletion(path.read_bytes(), Trust(authority=self.authority))[0]


@pytest.fixture
def site(tmp_path: Path) -> Keeping:
    return Keeping(tmp_path / "state")


def test_a_site_that_left_deletes_all_it_has_of_the_study_and_nothing_else(site: Keeping) -> None:
    site.state.leave(STUDY)
    others = site.left("another")
    planned = site.purge.plan(STUDY)
    path, _ = site.purge.purge(STUDY, "kim")
    assert not site.state.study_folder(STUDY).exists()
    assert site.outbox.folders_of(STUDY) == ()
    assert {one.name for one in site.left() if one.name != "audit.jsonl"} == set()
    assert site.left("another") == others
    said = site.said(path)
    assert said.deleted == planned
    assert {one.kind for one in said.deleted} == {"model", "prior", "outbox", "record"}
    assert (said.place, said.owner, said.actor) == ("site", "north", "kim")
    log = site.audit.verify()
    assert (said.audit_entries, said.audit_head) == (log.entries, log.head)
    assert [entry.action for entry in site.audit.entries()][-2:] == ["study.purge", "study.purged"]


def test_a_study_that_the_site_still_takes_part_in_is_not_purged(site: Keeping) -> None:
    with pytest.raises(StateError, match="still takes part") as refused:
        site.purge.purge(STUDY, "kim")
    assert f"fedmap-site leave {STUDY}" in refused.value.hint
    assert site.purge.plan(STUDY)


def test_a_study_of_which_nothing_is_kept_is_told(site: Keeping) -> None:
    with pytest.raises(NotFoundError, match="nothing of the study nobody"):
        site.purge.plan("nobody")


def test_without_a_key_nothing_is_deleted(site: Keeping) -> None:
    site.state.leave(STUDY)
    (site.state.folder / "identity").unlink()
    with pytest.raises(StateError, match="no certificate yet"):
        site.purge.purge(STUDY, "kim")
    assert len(site.purge.plan(STUDY)) == 7


KILLED = """
import sys
from pathlib import Path
from tests.site_agent.test_purge import STUDY, Keeping
Keeping(Path(sys.argv[1]), fill=False).purge.purge(STUDY, "kim")
"""


@pytest.mark.parametrize("point", ["purge_begun", "purging", "purge_files_gone"])
def test_a_purge_that_is_killed_is_finished_by_the_next_one(site: Keeping, point: str) -> None:
    site.state.leave(STUDY)
    planned = site.purge.plan(STUDY)
    environment = {**os.environ, VARIABLE: f"agent.{point}"}
    killed = run_forked("-c", [KILLED, str(site.state.folder)], environment)
    assert killed.returncode == -signal.SIGKILL
    assert site.purge.interrupted() == (STUDY,)
    SiteRetention(0, site.state, site.purge, dict, site.clock)()  # as the agent does at its start
    assert site.purge.interrupted() == ()
    (path,) = site.state.deletions_folder.glob("*.deletion.json")
    assert site.said(path).deleted == planned
    assert site.said(path).actor == "kim"
    assert not site.state.study_folder(STUDY).exists()
    assert site.outbox.folders_of(STUDY) == ()


def test_the_agent_deletes_by_itself_when_the_time_is_up(site: Keeping) -> None:
    phases = {STUDY: "rounds", "another": "rounds"}
    rule = SiteRetention(30, site.state, site.purge, lambda: phases, site.clock)
    rule()
    phases[STUDY] = "complete"
    for days, there in ((1, True), (29, True), (2, False)):
        site.clock.now += days * DAY_MS
        rule()
        assert site.state.study_folder(STUDY).exists() is there
    (path,) = site.state.deletions_folder.glob("*.deletion.json")
    assert site.said(path).actor == ACTOR
    assert site.state.studies() == ("another",)


def test_nothing_is_deleted_by_itself_unless_asked_for(site: Keeping) -> None:
    site.state.leave(STUDY)
    site.clock.now += 10_000 * DAY_MS

    def unasked() -> dict[str, str]:
        raise AssertionError("the aggregator is asked only where there is a rule")

    SiteRetention(0, site.state, site.purge, unasked, site.clock)()
    assert site.purge.plan(STUDY)


def test_a_certificate_is_not_signed_while_an_item_without_a_name_is_left(
    site: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    site.state.leave(STUDY)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)  # between an item's rename and its deletion
        with pytest.raises(KeyboardInterrupt):
            site.purge.purge(STUDY, "kim")
    site.purge.purge(STUDY, "kim")
    assert {one.name for one in site.left() if one.name != "audit.jsonl"} == set()


def begin_and_die(site: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge that wrote its list and deleted nothing."""

    def killed(_study: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(site.outbox, "remove_study", killed)
        with pytest.raises(KeyboardInterrupt):
            site.purge.purge(STUDY, "kim")


def test_a_study_is_not_approved_again_while_its_deletion_is_unfinished(
    site: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = site.state.terms(STUDY)
    site.state.leave(STUDY)
    begin_and_die(site, monkeypatch)
    with pytest.raises(StateError, match="begun and is not finished") as refused:
        site.state.approve(terms, "kim", site.clock(), "p" * 64)
    assert f"fedmap-site purge {STUDY}" in refused.value.hint
    site.purge.purge(STUDY, "kim")
    site.state.approve(terms, "kim", site.clock(), "p" * 64)
    assert STUDY in site.state.studies()


def test_a_begun_purge_does_not_delete_a_study_that_the_site_takes_part_in(
    site: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = site.state.study_folder(STUDY) / "approval.json"
    before = approval.read_bytes()
    site.state.leave(STUDY)
    begin_and_die(site, monkeypatch)
    approval.write_bytes(before)  # approved again by an older version
    SiteRetention(0, site.state, site.purge, dict, site.clock)()
    with pytest.raises(StateError, match="still takes part"):
        site.purge.purge(STUDY, "kim")
    assert STUDY in site.state.studies()
    assert site.state.study_folder(STUDY).joinpath("models", "round-0001.safetensors").exists()


def test_the_time_of_an_earlier_end_does_not_count_after_a_new_approval(site: Keeping) -> None:
    phases = {STUDY: "rounds", "another": "rounds"}
    rule = SiteRetention(30, site.state, site.purge, lambda: phases, site.clock)
    terms = site.state.terms(STUDY)
    site.state.leave(STUDY)
    rule()
    site.state.approve(terms, "kim", site.clock(), "p" * 64)
    phases[STUDY] = "complete"
    for days, there in ((40, True), (29, True), (2, False)):
        site.clock.now += days * DAY_MS
        rule()
        assert site.state.study_folder(STUDY).exists() is there
