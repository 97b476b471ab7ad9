"""docs/hospital-it.md, command by command as written, in a real federation: a centre, this hospital, another.

Only what a reader fills in is filled in: address, token, fingerprint, digest, and the patients' file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import fedmap_site.cli.main
from fedmap_lab.local.federation import LocalFederation
from tests.forked_programs import ForkedProgram, run_forked
from tests.lab.conftest import BINARY_PLAN
from tests.services.forked_federation import ForkedFederation
from tests.services.guide_pages import DOCS, Block, blocks_of, console_lines, words_of
from tests.services.studies import SmallStudy, operator, small_study

PAGE = "hospital-it.md"
HERE, OTHER = "st-elsewhere", "county"
PLAN = BINARY_PLAN.replace('name = "toy"', 'name = "iron"').replace(
    "A toy study", "Iron deficiency from the blood count"
)
TENTHS_OF_A_SECOND = 10 * 120
ELSEWHERE = {
    "fedmap-site run": "runs until it is stopped: this test starts and stops it",
    "fedmap-site enrol": "needs a second invitation: this test gets one at its end",
    "iptables": "tests/containers/test_hospital_container.py, as written (`make compose-test`)",
    "docker compose": "tests/containers/hospital.py, as written (`make compose-test`)",
    "python3.11 -m venv": "tests/deploy/plain_installation.py, as written (`make install-test`)",
    "/opt/fedmap/bin/pip": "tests/deploy/plain_installation.py, as written (`make install-test`)",
    "systemctl": "tests/containers/test_systemd.py, as written (`make compose-test`)",
    "journalctl": "tests/containers/test_systemd.py, as written (`make compose-test`)",
}


class Hospital:
    """The folder in which a reader of the page works."""

    def __init__(self, folder: Path, filled: dict[str, str]) -> None:
        self.folder = folder
        self._filled = filled

    def run(self, command: str) -> str:
        for name, value in self._filled.items():
            command = command.replace(name, value)
        program, *arguments = words_of(command)
        if program.startswith("fedmap-"):
            done: subprocess.CompletedProcess[str] = run_forked(
                program, arguments, _environment(), self.folder
            )
        else:
            done = subprocess.run(
                [program, *arguments],
                cwd=self.folder,
                env=_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stderr + done.stdout

    def invited_again(self, told: dict[str, str]) -> None:
        self._filled |= {"FINGERPRINT": told["ca_fingerprint"], "TOKEN": told["token"]}

    def walk(self, block: Block) -> None:
        block.check("".join(self.run(command) for command in block.commands))


def _environment() -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("FEDMAP_")}
    return {**known, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def wait_for(path: Path, process: ForkedProgram, log: Path) -> None:
    """Until the agent has made something."""
    for _ in range(TENTHS_OF_A_SECOND):
        if path.exists():
            return
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"{path} did not appear\n{log.read_text()}")


def prepare(federation: LocalFederation, study: SmallStudy, folder: Path) -> Hospital:
    """Everything that the centre and the other hospital do; what this hospital gets from them."""
    federation.initialise()
    federation.serve()
    federation.join(next(site for site in study.sites if site.name == OTHER))
    told = json.loads(federation.aggregator("invite", HERE, "--tier", "1", "--json"))
    digest = federation.create_study(study.plan, study.rounds, seed=1)
    federation.site(OTHER, "approve", digest, "--approver", "county")
    folder.mkdir()
    shutil.copy(federation.aggregator_folder / "state" / "pki" / "joining.pem", folder)
    shutil.copy(study.plan, folder / "plan.toml")
    return Hospital(
        folder,
        {
            "fedmap.example.org:8443": f"localhost:{federation.port}",
            "FINGERPRINT": told["ca_fingerprint"],
            "TOKEN": told["token"],
            "DIGEST": digest,
        },
    )


def test_hospital_it_climbs_the_ladder_as_written_and_leaves_without_a_trace(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", PLAN, {HERE: 240, OTHER: 200}, rounds=2)
    with ForkedFederation(tmp_path / "federation") as federation:
        hospital = prepare(federation, study, tmp_path / "hospital")
        (data,) = [site.data for site in study.sites if site.name == HERE]
        blocks = iter(blocks_of(PAGE))
        hospital.walk(next(blocks))  # 1, install
        hospital.walk(next(blocks))  # 2, enrol
        config = hospital.folder / "site.toml"
        config.write_text(config.read_text().replace('file = ""', f'file = "{data}"'))
        for _ in range(5):  # 3 to 7, doctor to dry run
            hospital.walk(next(blocks))
        assert not list((hospital.folder / "state" / "outbox").glob("iron*")), "a dry run queues nothing"
        with operator(federation) as client:
            client.control("iron", "start")
        federation.run_site(OTHER)
        log = tmp_path / "log"
        agent = ForkedProgram("fedmap-site", ["run"], _environment(), log, log, hospital.folder)  # 8, run
        try:
            wait_for(hospital.folder / "state" / "outbox" / "iron.statistics.1", agent, log)
            for block in blocks:  # status, 9 release, upgrade, removal
                hospital.walk(block)
        finally:
            agent.send_signal(signal.SIGTERM)
            assert agent.wait() == 0
        assert not (hospital.folder / "state" / "studies" / "iron").exists()
        assert (hospital.folder / "state" / "audit.jsonl").stat().st_size > 0
        hospital.invited_again(json.loads(federation.aggregator("invite", HERE, "--tier", "1", "--json")))
        (again,) = [line for line in console_lines(PAGE) if line.startswith("fedmap-site enrol")]
        assert "is enrolled" in hospital.run(again)


def test_every_block_that_is_not_walked_through_says_where_it_is_run() -> None:
    found = set()
    for line in console_lines(PAGE):
        (start,) = [start for start in ELSEWHERE if line.startswith(start)]
        found.add(start)
    assert found == set(ELSEWHERE)


def documented(page: str) -> list[str]:
    """Every command of the site agent that a page names, also inside a container."""
    text = (DOCS / page).read_text(encoding="utf-8")
    inline = re.findall(r"`(fedmap-site [a-z][^`\n]*)`", text)
    inside = [
        f"fedmap-site {line.partition(' agent ')[2].removeprefix('fedmap-site ')}"
        for line in console_lines(page)
        if " agent " in line
    ]
    plain = [line for line in console_lines(page) if line.startswith("fedmap-site ")]
    return sorted({*inline, *inside, *plain})


@pytest.mark.parametrize("line", [*documented(PAGE), *documented("assurance.md")])
def test_every_command_of_the_pages_exists_with_its_options(line: str) -> None:
    words = words_of(line)[1:]
    command = typer.main.get_command(fedmap_site.cli.main.app)
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)] if words and words[0] in command.commands else command
        if isinstance(command, TyperGroup) and (not words or words[0] not in command.commands):
            break
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert words_of(line)[1] in typer.main.get_command(fedmap_site.cli.main.app).commands  # type: ignore[attr-defined]


def test_every_message_that_the_page_explains_is_one_that_the_programs_give() -> None:
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    table = text.partition("## What to do when")[2]
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("common", "site_agent")
        for path in sorted((DOCS.parent / folder).rglob("*.py"))
    )
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    for message in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE):
        parts = [part for part in re.split(r"[…?]| N\b| M\b|\(HTTP.*", message) if part.strip(" ,;")]
        assert all(part.strip() in source for part in parts), message


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (PAGE, "assurance.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([^)]+))?\)", text):
            linked = DOCS / target if target else DOCS / page
            assert linked.exists(), (page, target)
            if anchor:
                headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, (page, target, anchor)


def test_every_file_that_the_assurance_page_calls_evidence_exists() -> None:
    text = (DOCS / "assurance.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:aggregator|common|site_agent|tests|deploy)/[\w/.-]+|constraints\.txt)`", text)
    assert len(named) > 20
    assert [name for name in named if not (DOCS.parent / name).exists()] == []
