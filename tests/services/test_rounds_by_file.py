"""A site without any network takes part by files, and the models are the same as over the network."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from fedmap.errors import StateError
from fedmap_lab.local.federation import LocalFederation
from tests.lab.conftest import BINARY_PLAN
from tests.services.forked_federation import ForkedFederation
from tests.services.guide_pages import DOCS, blocks_of, words_of
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

GUIDE = DOCS / "operator.md"
OFFLINE = "island"
PLAN = BINARY_PLAN.replace('name = "toy"', 'name = "interval-iron"')
ASKED_OF_A_PERSON = "statistics"
"""The one task that waits in the outbox for a release here; the policy lets the others go by themselves."""


def rows_of_the_table() -> list[list[str]]:
    """The guide's steps: for each row of its table the commands that it names, in order."""
    section = GUIDE.read_text(encoding="utf-8").split("\n## Sites without a network\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|") and "`fedmap-" in line]
    return [re.findall(r"`(fedmap-[^`]+)`", row) for row in rows]


class Carrier:
    """Walks between the centre and a site without a network; the current folder is the airlock."""

    def __init__(self, federation: LocalFederation) -> None:
        self._federation = federation
        self.filled = {"fedmap.example.org:8443": f"localhost:{federation.port}", "NAME": "test"}

    def run(self, command: str) -> str:
        """A command of the guide, as written but for what its reader fills in."""
        for name, value in self.filled.items():
            command = command.replace(name, value)
        program, *words = words_of(command)
        if program == "fedmap-site":
            return self._federation.site(OFFLINE, *words)
        return self._federation.aggregator(*words)


def enrol_by_file(carrier: Carrier, rows: list[list[str]]) -> None:
    """Out: a certificate request. In: the certificate. The key never moves."""
    (invite,), *others = rows
    told = json.loads(carrier.run(f"{invite} --json"))
    carrier.filled |= {"TOKEN": told["token"], "FINGERPRINT": told["ca_fingerprint"]}
    for (command,) in others:
        carrier.run(command)


def work_by_file(federation: LocalFederation, carrier: Carrier, study: SmallStudy) -> list[str]:
    """Carry tasks in and answers out until the study has ended; the tasks that travelled."""
    *_, (export,), (work, release), (take,) = rows_of_the_table()
    (block,) = [one for one in blocks_of("operator.md") if "round export" in one.commands[0]]
    policy = federation.site_folder(OFFLINE) / "policy.toml"
    carried: list[str] = []
    with operator(federation) as client:
        for _ in range(TENTHS_OF_A_SECOND):
            (status,) = client.status(study.name).studies
            if status.phase in ENDED:
                return carried
            waiting = {member.site: member.answer for member in status.members}
            task = status.task_id
            if task and waiting[OFFLINE] == "waiting" and task not in carried:
                if task == ASKED_OF_A_PERSON:
                    automatic = policy.read_text()
                    policy.write_text(automatic.replace("automatic", "review"))
                    for command in (export, work, release, work, take):
                        carrier.run(command)
                    policy.write_text(automatic)
                else:  # the block below the table
                    told = carrier.run(block.commands[0])
                    carrier.run(work.replace("answer.drop", "island-answer.drop"))
                    told += carrier.run(block.commands[1])
                    if task.startswith("round-"):  # as the block has it
                        block.check(told)
                carried.append(task)
                Path("task.drop").unlink()
                (answer,) = Path().glob("*answer.drop")
                answer.rename(f"{task}.answer")
                continue
            try:
                federation.process("aggregator").wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError(f"the study did not end: {status}")


def test_a_site_that_takes_part_by_files_gives_the_same_models_as_over_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of the guide's section, and the same commands again for each task."""
    study = small_study(tmp_path, PLAN, {"a": 90, OFFLINE: 80}, rounds=1)
    simulated = study.simulated()
    airlock = tmp_path / "airlock"
    airlock.mkdir()
    monkeypatch.chdir(airlock)
    by_name = {site.name: site for site in study.sites}
    with ForkedFederation(tmp_path / "federation") as federation:
        federation.initialise()
        federation.serve()
        federation.join(by_name["a"])
        federation.write_site_config(by_name[OFFLINE])
        carrier, rows = Carrier(federation), rows_of_the_table()
        enrol_by_file(carrier, rows[:4])
        digest = federation.create_study(study.plan, study.rounds, SEED)
        federation.site("a", "approve", digest, "--approver", "test")
        for (command,) in rows[4:7]:
            carrier.run(command)
        start(federation, study)
        federation.run_site("a")
        carried = work_by_file(federation, carrier, study)
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
