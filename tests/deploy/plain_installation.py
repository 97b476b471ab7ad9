"""The plain-Python installations of the guides as written, with packages from the index: `make install-test`.

Not part of `make test`: each fetches torch and the rest, and accounts and folders of its own take root.
What the unit would start is started by hand; tests/containers/test_systemd.py has the unit.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap_lab.local.federation import LocalFederation
from tests.deploy.loopback_only import Outcome, WithNetwork
from tests.lab.conftest import write_site
from tests.services.guide_pages import blocks_of, console_lines

ROOT = Path(__file__).parents[2]
SITE, ROWS = "my-hospital", 240
RUNS_SECONDS = 30
NEW_ENOUGH = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"
MINUTES = 60.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[WithNetwork]:
    """With a checkout as the current folder: every file that git knows, as it is now."""
    if subprocess.run(["/usr/bin/python3", "-c", NEW_ENOUGH], check=False).returncode:
        pytest.skip("this machine's own python3 is older than 3.11, or has no venv")
    made = WithNetwork(tmp_path / "machine")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (made.work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, made.work / name)
    yield made
    shutil.rmtree(made.scratch)


def all_well(outcomes: list[Outcome]) -> dict[str, Outcome]:
    for done in outcomes:
        assert done.code == 0, f"{done.command}\n{done.out}\n{done.err}"
    return {done.command: done for done in outcomes}


def hospital_block() -> list[str]:
    (block,) = [
        one for one in blocks_of("../deploy/README.md") if one.commands[0].startswith("python3 -m venv")
    ]
    return list(block.commands)


def test_a_hospital_installs_and_enrols_by_the_commands_of_the_readme(
    machine: WithNetwork, tmp_path: Path
) -> None:
    *steps, enable = hospital_block()
    assert enable == "systemctl enable --now fedmap-site"
    with LocalFederation(tmp_path / "federation") as federation:
        federation.initialise()
        federation.serve()
        told = json.loads(federation.aggregator("invite", SITE, "--tier", "1", "--json"))
        shutil.copy(federation.aggregator_folder / "state" / "pki" / "joining.pem", machine.work)
        write_site(machine.work / "patients.csv", ROWS, seed=7)
        filled = {"FINGERPRINT": told["ca_fingerprint"], "TOKEN": told["token"]}
        place = next(number for number, line in enumerate(steps) if line.startswith("sed "))
        steps[place:place] = [  # "set name, address and file in it"
            f"sed -i 's#aggregator.example.org:8443#localhost:{federation.port}#' /etc/fedmap/site.toml",
            "install -m 0640 -g fedmap-site patients.csv /etc/fedmap/",
        ]
        unit = (ROOT / "deploy" / "site_agent" / "fedmap-site.service").read_text()
        (starts,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        agent = f"runuser -u fedmap-site -- timeout --preserve-status {RUNS_SECONDS} {starts}"
        for name, value in filled.items():
            steps = [line.replace(name, value) for line in steps]
        done = all_well(machine.run([*steps, agent], timeout=MINUTES * 60))
    (doctor,) = [one for command, one in done.items() if " doctor " in command]
    assert {line.split()[0] for line in doctor.out.splitlines()} == {"ok"}
    assert '"connected"' in done[agent].err


def test_the_page_for_hospital_it_has_the_same_installation() -> None:
    venv, pip = [
        line for line in console_lines("hospital-it.md") if line.startswith(("python3.11 ", "/opt/"))
    ]
    ours = hospital_block()[:2]
    assert venv.replace("python3.11", "python3") == ours[0]
    assert pip.partition(" # ")[0].split() == ours[1].partition(" # ")[0].split()


def test_the_aggregator_installs_by_the_command_of_the_operators_guide(machine: WithNetwork) -> None:
    (pip,) = [
        line for one in blocks_of("operator.md") for line in one.commands if line.startswith("pip install")
    ]
    steps = [
        "python3 -m venv /opt/centre",
        f"export PATH=/opt/centre/bin:$PATH; {pip}",
        "/opt/centre/bin/fedmap-aggregator --version",
        "cd /srv && /opt/centre/bin/fedmap-aggregator init --address localhost:8443",
        "/opt/centre/bin/fedmap-aggregator doctor",
        "/opt/centre/bin/python -c 'import torch; assert torch.version.cuda is None'",
    ]
    all_well(machine.run(steps, timeout=MINUTES * 60))
