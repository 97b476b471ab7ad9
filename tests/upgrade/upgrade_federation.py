"""This version together with the one before it, as real processes over mutual TLS: `make upgrade-test`.

The previous release is built from the project's history into an environment of its own; FEDMAP_PREVIOUS
names its programs. Not part of `make test`: the build takes minutes. What the wire has to keep is also held,
without it, by tests/common/test_contract_compatibility.py.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest

from fedmap.errors import StateError
from fedmap.files.digests import file_sha256
from fedmap.process.fault_points import VARIABLE
from fedmap_lab.local.federation import LocalFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import (
    SmallStudy,
    assemble,
    operator,
    run_through,
    small_study,
    start,
    wait_until_ended,
)

PREVIOUS = "FEDMAP_PREVIOUS"
ENDS_WITHIN_SECONDS = 120
SIGKILLED = -9
PATIENT = "[limits]\nsilent_after_seconds = 3600.0\n"
"""A machine that is busy with the build must not make a site look silent: every round waits for all."""

AFTERWARDS = 'egress = "automatic"\nmin_rows = 10\nmin_events = 0\n'
BUNDLE = "toy-t3-1"


@dataclass
class MixedFederation(LocalFederation):
    """Some processes run the previous release."""

    older: set[str] = field(default_factory=set)

    def program(self, name: str, program: str) -> Path:
        return previous() / program if name in self.older else super().program(name, program)


def previous() -> Path:
    found = os.environ.get(PREVIOUS, "")
    assert found, f"{PREVIOUS} is not set: run `make upgrade-test`"
    return Path(found)


def installed(programs: Path) -> dict[str, str]:
    """Our distributions beside these programs, with their versions."""
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({d.name: d.version for d in m.distributions() if d.name.startswith('fedmap')}))"
    )
    done = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(autouse=True)
def _away_from_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous release starts its estimation from the current folder: there must be no code in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def study(tmp_path: Path) -> SmallStudy:
    return small_study(tmp_path, sites={"a": 90, "b": 70, "c": 80}, rounds=3)


def identity_files(federation: LocalFederation, *sites: str) -> dict[str, str]:
    """Digests of every key and certificate: of the authority, the server, the releases, the sites."""
    state = federation.aggregator_folder / "state"
    folders = [state / "pki", state / "release"]
    folders += [(federation.site_folder(site) / "state" / "identity").resolve() for site in sites]
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    assert len(files) >= 7 + 3 * len(sites)
    return {str(path.relative_to(federation.directory)): file_sha256(path) for path in files}


def test_the_previous_release_is_another_installation() -> None:
    assert installed(previous()) != installed(Path(sys.executable).parent)


def test_agents_of_the_previous_release_and_of_this_one_train_together(
    tmp_path: Path, study: SmallStudy
) -> None:
    simulated = study.simulated()
    with MixedFederation(tmp_path / "federation", aggregator_toml=PATIENT, older={"a", "b"}) as federation:
        assemble(federation, study)
        start(federation, study)
        for site in study.sites:
            federation.run_site(site.name)
        status = wait_until_ended(federation, study)
        assert status.phase == "complete"
        assert [entry.answered for entry in status.history] == [3, 3, 3]
        assert_same_as_simulated(federation, study, status, simulated)
        with operator(federation) as client:
            versions = {site.name: site.software_version for site in client.sites()}
        assert versions["a"] == versions["b"] == installed(previous())["fedmap"]
        assert versions["c"] == version("fedmap")


def test_an_upgrade_in_the_middle_of_a_study_ends_with_the_same_models_and_the_same_keys(
    tmp_path: Path, study: SmallStudy
) -> None:
    simulated = study.simulated()
    older = {"aggregator", "a", "b", "c"}
    with MixedFederation(tmp_path / "federation", aggregator_toml=PATIENT, older=older) as federation:
        assemble(federation, study)
        start(federation, study)
        federation.run_site("a")
        federation.run_site("b")
        federation.run_site("c", {VARIABLE: "agent.trained:2"})  # stops the study in its second round
        assert federation.process("c").wait(timeout=ENDS_WITHIN_SECONDS) == SIGKILLED
        assert federation.stop("aggregator") == 0
        schema = schema_of(federation)
        keys = identity_files(federation, "a", "b", "c")
        federation.older.discard("aggregator")
        federation.serve()  # the new version, on the state folder of the old one
        federation.older.discard("c")
        federation.run_site("c")  # one site is updated too, the others later
        status = wait_until_ended(federation, study)
        assert status.phase == "complete"
        assert [entry.answered for entry in status.history] == [3, 3, 3]
        assert_same_as_simulated(federation, study, status, simulated)
        assert identity_files(federation, "a", "b", "c") == keys
        federation.aggregator("audit", "verify")
        # Back to the old version: where the tables have changed it refuses, in words; else it goes on.
        federation.stop("aggregator")
        federation.older.add("aggregator")
        if schema_of(federation) != schema:
            with pytest.raises(StateError, match="newer version"):
                federation.aggregator("serve")
        else:
            federation.serve()
            assert wait_until_ended(federation, study).prior_digest == status.prior_digest


def test_answers_that_wait_for_a_person_are_released_after_the_upgrade(
    tmp_path: Path, study: SmallStudy
) -> None:
    simulated = study.simulated()
    sites = [site.name for site in study.sites]
    older = {"aggregator", *sites}
    with MixedFederation(
        tmp_path / "federation", egress="review", aggregator_toml=PATIENT, older=older
    ) as federation:
        assemble(federation, study)
        start(federation, study)
        for site in sites:
            federation.run_site(site)
        waiting = {site: first_to_review(federation, site) for site in sites}
        federation.stop_all()
        federation.older.clear()
        federation.serve()
        for site in sites:
            (federation.site_folder(site) / "policy.toml").write_text(AFTERWARDS)
            assert federation.waiting_for_review(site) == waiting[site]
            federation.site(site, "release", *waiting[site], "--approver", "test")
            federation.run_site(site)
        status = wait_until_ended(federation, study)
        assert [entry.answered for entry in status.history] == [3, 3, 3]
        assert_same_as_simulated(federation, study, status, simulated)


def test_a_backup_and_a_bundle_of_the_previous_release_are_read_by_this_one(
    tmp_path: Path, study: SmallStudy
) -> None:
    older = {"aggregator", "clinic", *(site.name for site in study.sites)}
    backup, patients = tmp_path / "centre.backup", study.sites[0].data
    with MixedFederation(tmp_path / "federation", aggregator_toml=PATIENT, older=older) as federation:
        status = run_through(federation, study)
        federation.aggregator("bundle", "release", study.name, "--tier", "3")
        federation.aggregator("bundle", "download", BUNDLE, "--out", str(tmp_path))
        listed = federation.aggregator("bundle", "list", "--json")
        federation.aggregator("backup", "--out", str(backup))
        key = json.loads(listed)["key_fingerprint"]
        predicted = [predictions(federation, tmp_path, patients, key, age) for age in ("old", "new")]
        assert predicted[0] == predicted[1]
        federation.stop_all()
        federation.older.clear()
        (federation.aggregator_folder / "state").rename(tmp_path / "lost")
        federation.aggregator("restore", str(backup))
        federation.serve()
        assert federation.aggregator("bundle", "list", "--json") == listed
        assert wait_until_ended(federation, study).prior_digest == status.prior_digest
        federation.aggregator("audit", "verify")


def first_to_review(federation: LocalFederation, site: str) -> list[str]:
    """What waits for a person, as soon as something does."""
    for _ in range(ENDS_WITHIN_SECONDS):
        if found := federation.waiting_for_review(site):
            return found
        time.sleep(0.5)
    raise AssertionError(federation.tail(site))


def predictions(federation: MixedFederation, folder: Path, patients: Path, key: str, age: str) -> bytes:
    """What a clinic predicts with the bundle: by the old version, which also installs it, or by the new."""
    if age == "new":
        federation.older.discard("clinic")
    else:
        federation.clinic(
            "clinic", "bundle", "install", str(folder / f"{BUNDLE}.fedmap"), "--fingerprint", key
        )
    out = folder / f"{age}.csv"
    federation.clinic("clinic", "predict", "--bundle", BUNDLE, "--data", str(patients), "--out", str(out))
    return out.read_bytes()


def schema_of(federation: LocalFederation) -> str:
    """Which revision the tables of the aggregator's database have."""
    (database,) = (federation.aggregator_folder / "state").glob("*.db")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return str(connection.execute("SELECT version_num FROM fedmap_schema").fetchone()[0])
