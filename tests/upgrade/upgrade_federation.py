"""This version together with the one before it, as real processes over mutual TLS: `make upgrade-test`.

The previous release is built from the project's history into an environment of its own; FEDMAP_PREVIOUS
names its programs. Not part of `make test`: the build takes minutes. What the wire has to keep is also held,
without it, by tests/common/test_contract_compatibility.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest

from fedmap.files.digests import file_sha256
from fedmap.process.fault_points import VARIABLE
from fedmap_lab.local.federation import LocalFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import SmallStudy, assemble, operator, small_study, start, wait_until_ended

PREVIOUS = "FEDMAP_PREVIOUS"
ENDS_WITHIN_SECONDS = 120
SIGKILLED = -9
PATIENT = "[limits]\nsilent_after_seconds = 3600.0\n"
"""A machine that is busy with the build must not make a site look silent: every round waits for all."""


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
        # There is no way back without the backup: the old version refuses the upgraded database, in words.
        federation.stop("aggregator")
        federation.older.add("aggregator")
        refused = subprocess.run(
            [federation.program("aggregator", "fedmap-aggregator"), "serve"],
            env=federation.environment("aggregator"),
            capture_output=True,
            text=True,
            check=False,
            timeout=ENDS_WITHIN_SECONDS,
        )
        assert refused.returncode == 1
        assert "newer version" in refused.stderr
