"""The operator's guide on backup, update and deletion, command by command, at a federation of real
processes.

A study is backed up in its second round, runs to its end, is lost with the whole state folder, comes back
from the backup, and ends with the same models bit for bit. Then it is deleted at both ends.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedmap.process.fault_points import VARIABLE
from fedmap.process.settings import read_config
from fedmap.trust.deletion import Trust, read_deletion
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.store.layout import make_store
from fedmap_lab.local.federation import LocalFederation
from tests.services.forked_federation import ForkedFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import SmallStudy, assemble, small_study, start, wait_until_ended

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operator.md"
EXAMPLE = "interval-iron"
ENDS_WITHIN_SECONDS = 300
SIGKILLED = -9
PATIENT = "[limits]\nsilent_after_seconds = 3600.0\n"


def commands(section: str) -> list[list[list[str]]]:
    """The guide's commands of a section, block by block, each as its words."""
    text = GUIDE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    return [
        [line.partition(" #")[0].split() for line in block.splitlines() if line.startswith("fedmap-")]
        for block in blocks
    ]


def run(federation: LocalFederation, study: SmallStudy, line: list[str], files: Path) -> str:
    """One command as the guide has it; only the names of the study and of files are filled in."""
    program, *words = [word.replace(EXAMPLE, study.name).replace("NAME", "kim") for word in line]
    words = [str(files / word) if word.endswith((".backup", ".json")) else word for word in words]
    if program == "fedmap-site":
        return federation.site("a", *words)
    if words[0] == "serve":
        federation.serve()
        return ""
    if words[0] == "purge" and "--dry-run" not in words:
        words += ["--out", str(files / f"{study.name}.deletion.json")]
    return federation.aggregator(*words)


def rounds_stored(federation: LocalFederation, study: SmallStudy) -> list[str]:
    store = make_store(read_config(federation.aggregator_folder / "aggregator.toml", AggregatorConfig))
    try:
        with store.reading() as transaction:
            tasks = [row.task for row in transaction.results.list(study.name)]
    finally:
        store.close()
    return [task for task in tasks if task.startswith("round-")]


@pytest.mark.long
def test_the_guide_on_backup_update_and_deletion_works_as_written(tmp_path: Path) -> None:
    study = small_study(tmp_path, sites={"a": 90, "b": 70}, rounds=3)
    simulated = study.simulated()
    (make, put_back), (before_update, updated) = commands("Backup and restore"), commands("Updates")
    delete, delete_at_site = commands("Retention and deletion")
    with ForkedFederation(tmp_path / "federation", aggregator_toml=PATIENT) as federation:
        assemble(federation, study)
        start(federation, study)
        federation.run_site("a")
        federation.run_site("b", {VARIABLE: "agent.trained:2"})  # the study stands in its second round
        assert federation.process("b").wait(timeout=ENDS_WITHIN_SECONDS) == SIGKILLED
        told = "".join(run(federation, study, line, tmp_path) for line in make)
        assert "read it back whole" in told
        assert "encrypt it" in told
        assert "fedmap.backup is whole" in told
        federation.run_site("b")
        assert_same_as_simulated(federation, study, wait_until_ended(federation, study), simulated)

        federation.kill("aggregator")
        state = federation.aggregator_folder / "state"
        keys = {path.name: path.read_bytes() for path in (state / "pki").iterdir()}
        shutil.rmtree(state)
        (federation.aggregator_folder / "aggregator.toml").unlink()
        for line in put_back[:-1]:
            run(federation, study, line, tmp_path)
        assert {path.name: path.read_bytes() for path in (state / "pki").iterdir()} == keys
        assert rounds_stored(federation, study) == ["round-1"]  # the past
        run(federation, study, put_back[-1], tmp_path)
        status = wait_until_ended(federation, study)
        assert [entry.answered for entry in status.history] == [2, 2, 2]
        assert_same_as_simulated(federation, study, status, simulated)

        for line in before_update:
            run(federation, study, line, tmp_path)
        federation.stop("aggregator")
        for line in updated:
            run(federation, study, line, tmp_path)

        told = "".join(run(federation, study, line, tmp_path) for line in delete)
        assert "is genuine, signed by release key" in told
        assert list((state / "blobs" / "kept").glob("*/*")) == []
        told = "".join(run(federation, study, line, tmp_path) for line in delete_at_site)
        assert told.count("is genuine, signed by") == 2
        assert not (federation.site_folder("a") / "state" / "studies" / study.name).exists()
        authority = (state / "pki" / "ca.pem").read_bytes()
        said, _ = read_deletion((tmp_path / "county.deletion.json").read_bytes(), Trust((), authority))
        assert {one.kind for one in said.deleted} >= {"model", "outbox"}
        assert json.loads(federation.aggregator("audit", "verify", "--json"))["entries"]
