"""An identifier is planted in every patient file; nothing the federation wrote or printed may hold it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.errors import StateError
from lab.local_federation import LocalFederation, command_path
from tests.lab.conftest import BINARY_PLAN
from tests.services.studies import assemble, run_through, small_study

PLANTED = "QX7731PLANTED"
PLAN = BINARY_PLAN.replace("[model]", '[data]\npatient = "patient"\n[model]')


def plant(file: Path, bad_cell: bool = False) -> None:
    """Give every row an identifier; with `bad_cell`, put one where a number belongs."""
    header, *rows = file.read_text().splitlines()
    marked = [f"{row},{PLANTED}{number}" for number, row in enumerate(rows)]
    if bad_cell:
        marked[3] = ",".join([PLANTED, *marked[3].split(",")[1:]])
    file.write_text("\n".join([f"{header},patient", *marked]) + "\n")


def files_that_hold_it(folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and (PLANTED.encode() in path.read_bytes() or PLANTED in path.name)
    ]


def test_a_planted_identifier_is_in_no_log_message_audit_record_or_blob(tmp_path: Path) -> None:
    study = small_study(tmp_path, PLAN, {"a": 90, "b": 80}, rounds=2)
    for site in study.sites:
        plant(site.data)
    folder = tmp_path / "federation"
    with LocalFederation(folder, log_level="debug") as federation:
        assert run_through(federation, study).phase == "complete"
        for site in study.sites:
            for command in (["status"], ["outbox"], ["studies"], ["doctor"], ["check-data", str(study.plan)]):
                assert PLANTED not in federation.site(site.name, *command)
        assert PLANTED not in federation.aggregator("status", "--json")
    assert (folder / "logs" / "a.log").stat().st_size > 0
    assert files_that_hold_it(folder) == []


def test_a_file_with_a_bad_cell_fails_its_site_only_and_never_quotes_the_cell(tmp_path: Path) -> None:
    plan = PLAN.replace("[rounds]\n", "[rounds]\nquorum = 2\ndeadline_minutes = 0.1\n")
    study = small_study(tmp_path, plan, {"a": 90, "b": 80, "c": 70}, rounds=1)
    for site in study.sites:
        plant(site.data, bad_cell=site.name == "c")
    folder = tmp_path / "federation"
    with LocalFederation(folder, log_level="debug") as federation:
        status = run_through(federation, study)
        assert status.phase == "complete"
        (excluded,) = (member for member in status.members if member.site == "c")
        assert excluded.membership == "excluded"
        assert excluded.reason
        with pytest.raises(StateError) as failure:
            federation.site("c", "check-data", str(study.plan))
        assert "a:" in str(failure.value)
        assert PLANTED not in str(failure.value)
    assert files_that_hold_it(folder) == []


def test_in_review_mode_nothing_leaves_before_a_named_person_releases_it(tmp_path: Path) -> None:
    study = small_study(tmp_path, sites={"a": 90, "b": 80}, rounds=1)
    with LocalFederation(tmp_path / "federation", egress="review") as federation:
        assemble(federation, study)
        federation.aggregator("study", "start", study.name)
        for site in study.sites:
            federation.run_site(site.name)
        released = 0
        watching = subprocess.Popen(
            [str(command_path("fedmap-aggregator")), "status", study.name, "--watch"],
            env=federation.environment("aggregator"),
            stdout=subprocess.DEVNULL,
        )
        try:
            while watching.poll() is None:
                for site in study.sites:
                    waiting = federation.waiting_for_review(site.name)
                    if waiting:
                        federation.site(site.name, "release", *waiting, "--approver", "reviewer")
                        released += len(waiting)
        finally:
            watching.kill()
            watching.wait()
        assert watching.returncode == 0
        assert released >= 2 * 4  # statistics, round, rule and evaluation of both sites, and the first model
        audit = (federation.site_folder("a") / "state" / "audit.jsonl").read_text()
        assert "reviewer" in audit
        federation.site("a", "audit", "verify")
