"""A site without any network takes part by files, and the models are the same as over the network."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from common.errors import StateError
from lab.local_federation import LocalFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import (
    ENDED,
    SEED,
    TENTHS_OF_A_SECOND,
    SmallStudy,
    operator,
    small_study,
    start,
    wait_until_ended,
)

OFFLINE = "b"


def enrol_by_file(federation: LocalFederation, airlock: Path, study: SmallStudy) -> None:
    """Out: a certificate request. In: the certificate. The key never moves."""
    (site,) = (site for site in study.sites if site.name == OFFLINE)
    federation.write_site_config(site)
    invitation = json.loads(federation.aggregator("invite", OFFLINE, "--tier", "1", "--json"))
    request, reply = airlock / "request.drop", airlock / "certificate.drop"
    token, fingerprint = invitation["token"], invitation["ca_fingerprint"]
    federation.site(OFFLINE, "enrol", "--offline-request", str(request), "--token", token)
    federation.aggregator("round", "import", str(request), "--out", str(reply))
    federation.site(OFFLINE, "enrol", "--offline-certificate", str(reply), "--ca-fingerprint", fingerprint)


def approve_by_file(federation: LocalFederation, airlock: Path, study: SmallStudy) -> None:
    offer, approval = airlock / "offer.drop", airlock / "approval.drop"
    federation.aggregator("round", "export", study.name, "--site", OFFLINE, "--out", str(offer))
    federation.site(OFFLINE, "approve", "--file", str(offer), "--out", str(approval), "--approver", "test")
    federation.aggregator("round", "import", str(approval))


def work_by_file(federation: LocalFederation, airlock: Path, study: SmallStudy) -> list[str]:
    """Carry tasks in and answers out until the study has ended; the tasks that travelled."""
    carried: list[str] = []
    with operator(federation) as client:
        for _ in range(TENTHS_OF_A_SECOND):
            (status,) = client.status(study.name).studies
            if status.phase in ENDED:
                return carried
            waiting = {member.site: member.answer for member in status.members}
            if status.task_id and waiting[OFFLINE] == "waiting" and status.task_id not in carried:
                task, answer = airlock / f"{status.task_id}.task", airlock / f"{status.task_id}.answer"
                federation.aggregator("round", "export", study.name, "--site", OFFLINE, "--out", str(task))
                federation.site(OFFLINE, "round", "run", str(task), "--out", str(answer))
                federation.aggregator("round", "import", str(answer))
                carried.append(status.task_id)
                continue
            try:
                federation.process("aggregator").wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError(f"the study did not end: {status}")


def test_a_site_that_takes_part_by_files_gives_the_same_models_as_over_the_network(tmp_path: Path) -> None:
    study = small_study(tmp_path, sites={"a": 90, OFFLINE: 80}, rounds=1)
    simulated = study.simulated()
    airlock = tmp_path / "airlock"
    airlock.mkdir()
    with LocalFederation(tmp_path / "federation") as federation:
        federation.initialise()
        federation.serve()
        (online,) = (site for site in study.sites if site.name != OFFLINE)
        federation.join(online)
        enrol_by_file(federation, airlock, study)
        digest = federation.create_study(study.plan, study.rounds, SEED)
        federation.site(online.name, "approve", digest, "--approver", "test")
        approve_by_file(federation, airlock, study)
        start(federation, study)
        federation.run_site(online.name)
        carried = work_by_file(federation, airlock, study)
        assert {"statistics", "round-1", "rule", "evaluate"} <= set(carried)
        assert_same_as_simulated(federation, study, wait_until_ended(federation, study), simulated)
        # The same file again changes nothing; a changed one is refused.
        answer = airlock / "round-1.answer"
        federation.aggregator("round", "import", str(answer))
        changed = bytearray(answer.read_bytes())
        changed[len(changed) // 2] ^= 1
        answer.write_bytes(changed)
        with pytest.raises(StateError, match="integrity"):
            federation.aggregator("round", "import", str(answer))
