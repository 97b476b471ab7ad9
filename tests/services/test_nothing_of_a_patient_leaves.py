"""An identifier is planted in every patient file; nothing the federation wrote or printed may hold it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmap.contract.v1 import values
from fedmap.errors import StateError
from fedmap_lab.local.federation import LocalFederation, command_path
from tests.lab.conftest import BINARY_PLAN
from tests.services.forked_federation import ForkedFederation
from tests.services.studies import SmallStudy, assemble, run_through, small_study

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


@dataclass(frozen=True)
class Ended:
    """A federation whose study is over: an identifier is in every row of a, b and c, and c has a bad cell."""

    federation: LocalFederation
    study: SmallStudy
    status: values.StudyStatus


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("planted")
    plan = PLAN.replace("[rounds]\n", "[rounds]\nquorum = 2\ndeadline_minutes = 0.1\n")
    study = small_study(folder, plan, {"a": 90, "b": 80, "c": 70}, rounds=2)
    for site in study.sites:
        plant(site.data, bad_cell=site.name == "c")
    with ForkedFederation(folder / "federation", log_level="debug") as federation:
        yield Ended(federation, study, run_through(federation, study))
    assert files_that_hold_it(folder / "federation") == [], "written at the end"


def test_a_planted_identifier_is_in_no_log_message_audit_record_or_blob(ended: Ended) -> None:
    assert ended.status.phase == "complete"
    federation = ended.federation
    for name in ("a", "b"):
        for command in (
            ["status"],
            ["outbox"],
            ["studies"],
            ["doctor"],
            ["check-data", str(ended.study.plan)],
        ):
            assert PLANTED not in federation.site(name, *command)
    assert PLANTED not in federation.aggregator("status", "--json")
    assert (federation.directory / "logs" / "a.log").stat().st_size > 0
    assert files_that_hold_it(federation.directory) == []


def test_a_file_with_a_bad_cell_fails_its_site_only_and_never_quotes_the_cell(ended: Ended) -> None:
    assert ended.status.phase == "complete"
    (excluded,) = (member for member in ended.status.members if member.site == "c")
    assert excluded.membership == "excluded"
    assert excluded.reason
    with pytest.raises(StateError) as failure:
        ended.federation.site("c", "check-data", str(ended.study.plan))
    assert "a:" in str(failure.value)
    assert PLANTED not in str(failure.value)
    assert files_that_hold_it(ended.federation.directory) == []


def something_waits(federation: LocalFederation, site: str) -> bool:
    """Whether an item of the outbox waits for a person, as its file says."""
    items = (federation.site_folder(site) / "state" / "outbox").glob("[!.]*/status.json")
    return any(json.loads(item.read_bytes())["state"] == "waiting_review" for item in items)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.long
def test_in_review_mode_nothing_leaves_before_a_named_person_releases_it(tmp_path: Path) -> None:
    study = small_study(tmp_path, sites={"a": 90, "b": 80}, rounds=1)
    with ForkedFederation(tmp_path / "federation", egress="review") as federation:
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
            while not has_ended(watching):
                for site in study.sites:
                    if not something_waits(federation, site.name):
                        continue
                    waiting = federation.waiting_for_review(site.name)
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
