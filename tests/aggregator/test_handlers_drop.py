"""Rounds as files: a site without a network takes part, and a forged or foreign file does nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import (
    IntegrityError,
    LimitError,
    NotAllowedError,
    NotFoundError,
    RejectedError,
    StateError,
    TokenError,
)
from fedmap.trust import drop_files
from fedmap.trust.pki import Identity, key_pem, make_csr, new_key, verify_chain
from tests.aggregator import small_study as made
from tests.aggregator.centre import OPERATOR, SILENT_AFTER, Centre, Site, run_until, scripted


def _export(centre: Centre, study: str, site: str, folder: Path) -> drop_files.DropFile:
    path = folder / "export"
    request = values.ExportDropRequest(study=study, site=site)
    path.write_bytes(b"".join(centre.drops.export(OPERATOR, request)))
    file = drop_files.read(path, folder=folder)
    file.verify(centre.authority.certificate_pem, centre.clock.moment, Identity("aggregator"))
    return file


def _task_in(file: drop_files.DropFile) -> values.Task:
    assert file.drop.task is not None
    return wire.read(values.Task, file.drop.task.task)


def _import(centre: Centre, path: Path) -> values.ImportDropResponse:
    data = path.read_bytes()
    chunks = (data[start : start + 1000] for start in range(0, len(data), 1000))
    return centre.drops.take(OPERATOR, chunks)


def _approval(study: made.Small, site: Site, folder: Path) -> Path:
    approval = values.DropApproval(study.terms.study, study.terms.digest)
    drop, path = values.Drop(site=site.name, approval=approval), folder / "approval"
    drop_files.write(path, drop, None, site.key, site.certificate)
    return path


def _answer(study: made.Small, site: Site, task: values.Task, folder: Path) -> Path:
    answer, tensors = scripted(study, task, site.name)
    drop = values.Drop(site=site.name, answer=values.DropAnswer(wire.write(answer)))
    data, path = folder / "tensors", folder / "answer"
    data.write_bytes(tensors)
    drop_files.write(path, drop, data if tensors else None, site.key, site.certificate)
    return path


def test_a_site_without_a_network_takes_part_from_approval_to_the_end(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.create("north", "south", rounds=1)
    offer = _export(centre, study.terms.study, "south", tmp_path)
    assert offer.drop.offer == values.DropOffer(study.terms.study, study.terms.to_json())
    assert _import(centre, _approval(study, south, tmp_path)).what == "approval"
    north.approve(study)
    centre.control(study, "start")
    for _ in range(20):
        if centre.status(study).phase == "complete":
            break
        if north.next_task() is not None:
            north.work(study)
        try:
            file = _export(centre, study.terms.study, "south", tmp_path)
        except StateError:
            continue
        task = _task_in(file)
        assert (file.tensors_path is not None) == bool(task.prior_digest)
        response = _import(centre, _answer(study, south, task, tmp_path))
        assert (response.what, response.task_id) == ("answer", task.id)
        centre.clock.now += SILENT_AFTER // 2
        north.next_task()
        centre.service.pass_time(centre.clock.now)
    assert centre.status(study).phase == "complete"
    assert centre.status(study).history[0].answered == 2


def test_the_same_answer_file_twice_changes_nothing(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    task = south.asked()
    path = _answer(study, south, task, tmp_path)
    assert _import(centre, path) == _import(centre, path)


def test_an_enrolment_travels_as_a_file_and_its_certificate_comes_back_signed(
    centre: Centre, tmp_path: Path
) -> None:
    token, key = centre.invite("airlock").token, new_key()
    asked = values.DropEnrolment(token, make_csr(key, Identity("site", "airlock")))
    drop = values.Drop(site="airlock", enrolment=asked)
    path = tmp_path / "enrolment"
    drop_files.write(path, drop, None, key_pem(key), b"")
    response = _import(centre, path)
    reply = tmp_path / "reply"
    reply.write_bytes(response.reply)
    file = drop_files.read(reply)
    file.verify(centre.authority.certificate_pem, centre.clock.moment, Identity("aggregator"))
    issued = file.drop.certificate
    assert issued is not None
    identity = verify_chain(issued.certificate_pem, issued.ca_pem, centre.clock.moment)
    assert identity == Identity("site", "airlock")
    with pytest.raises(TokenError, match="used"):
        _import(centre, path)


def test_a_file_signed_by_another_site_is_refused(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.create("north", "south")
    approval = values.DropApproval(study.terms.study, study.terms.digest)
    drop, path = values.Drop(site="south", approval=approval), tmp_path / "forged"
    drop_files.write(path, drop, None, north.key, north.certificate)
    with pytest.raises(IntegrityError, match="signed by site north"):
        _import(centre, path)
    assert south.name in centre.service.study(study.terms.study).state.members


def test_a_file_of_a_revoked_site_is_refused(centre: Centre, tmp_path: Path) -> None:
    centre.enrolled("north")
    south = centre.enrolled("south")
    study = centre.create("north", "south")
    path = _approval(study, south, tmp_path)
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="south"))
    with pytest.raises(NotAllowedError, match="revoked"):
        _import(centre, path)


def test_a_file_of_a_t3_site_may_not_do_what_is_for_t1(centre: Centre, tmp_path: Path) -> None:
    centre.enrolled("north"), centre.enrolled("south")
    clinic = centre.enrolled("clinic", tier=3)
    study = centre.create("north", "south")
    with pytest.raises(NotAllowedError, match="T3"):
        _import(centre, _approval(study, clinic, tmp_path))


def test_a_changed_file_and_one_that_is_no_drop_are_refused(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    task = south.asked()
    path = _answer(study, south, task, tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        _import(centre, path)
    path.write_bytes(b"hello")
    with pytest.raises(IntegrityError):
        _import(centre, path)


def test_a_file_without_end_is_cut_off(centre: Centre) -> None:
    chunk = b"x" * (1 << 20)
    with pytest.raises(LimitError, match="larger"):
        centre.drops.take(OPERATOR, iter(lambda: chunk, None))
    assert not list((centre.folder / "drops").iterdir())


def test_a_rejected_answer_in_a_file_is_recorded_against_that_site(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    task = south.asked()
    with pytest.raises(RejectedError, match="other terms"):
        _import(centre, _answer(study, south, replace(task, terms_digest="0" * 64), tmp_path))
    assert [r.site for r in centre.status(study).refusals] == ["south"]


def test_nothing_is_exported_where_nothing_is_open(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    south.work(study)
    with pytest.raises(StateError, match="nothing is open"):
        _export(centre, study.terms.study, "south", tmp_path)
    with pytest.raises(NotFoundError):
        _export(centre, study.terms.study, "ghost", tmp_path)
    with pytest.raises(NotFoundError):
        _export(centre, "no-such-study", "south", tmp_path)


def test_a_task_file_carries_the_prior_it_starts_from(centre: Centre, tmp_path: Path) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    run_until(study, "rounds", north, south)
    file = _export(centre, study.terms.study, "south", tmp_path)
    task = _task_in(file)
    assert file.drop.tensors_digest == task.prior_digest
    assert file.tensors_path is not None
    assert file.tensors_path.stat().st_size == task.prior_size
