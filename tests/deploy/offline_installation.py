"""The offline kit for real: unpacked, installed and used where there is no interface but loopback.

`make offline-kit-test` runs it against the archive that FEDMAP_KIT names; `make test` does not, since it
takes minutes, root and a container engine. Every command of the kit's INSTALL.md is run as written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.offline_kit.bill import faults_of
from tests.deploy.loopback_only import LoopbackOnly, Outcome
from tests.services.guide_pages import blocks_of
from tests.site_agent.tier_bundles import fedmap_site, patients, trained, write_table

ARCHIVE = Path(os.environ["FEDMAP_KIT"]).resolve()
KIT = ARCHIVE.name.removesuffix(".tar")
INTERFACES = "cat /proc/net/dev"
HARDENED = "--network none --read-only --user 12345 --cap-drop ALL --security-opt no-new-privileges"
DOCTOR_FOUND_A_FAULT = 3
SITES_DOCTOR = (
    ("configuration", "ok", r"site\.toml is in order"),
    ("policy", "ok", r"policy\.toml is in order; egress is review"),
    ("state folder", "fail", r"/state is not there\n.*`fedmap-site enrol` makes it"),
    ("data", "fail", r"every study: .*patients\.csv"),
)
"""All that `doctor` says without patients' files and without an invitation: the two faults of INSTALL.md."""
COPYLEFT = {
    "site": {"scikit-survival": "GPL-3.0-or-later", "ecos": "GPLv3"},
    "aggregator": {"psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"},
}
PLAIN_PYTHON = (1, 3)
CONTAINERS = (1, 2)
"""Sections of INSTALL.md."""


def read_from_kit(name: str) -> str:
    with tarfile.open(ARCHIVE) as tar:
        file = tar.extractfile(f"{KIT}/{name}")
        assert file is not None
        return file.read().decode()


FACTS: dict[str, Any] = json.loads(read_from_kit("kit.json"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LoopbackOnly]:
    made = LoopbackOnly(tmp_path / "machine")
    for path in (ARCHIVE, ARCHIVE.with_name(f"{ARCHIVE.name}.sha256")):
        (made.work / path.name).symlink_to(path)
    yield made
    shutil.rmtree(made.scratch)


def predictions(folder: Path, data: str, out: str) -> list[str]:
    """What a site does with its program: arguments that predict with a released model, on files below `data`.

    Model and patients are made in `folder`, and expected.csv there is what this checkout predicts. An
    aggregator does not predict: its `init` and `doctor` are on the page.
    """
    if FACTS["role"] != "site":
        return []
    study = trained(folder)
    study.bundle(folder, tier=3).chmod(0o644)
    people = patients(60, seed=4)
    write_table(folder / "patients.csv", people, event=None, grade=None, years=None, happened=None)

    def steps(data: str, out: str) -> list[str]:
        install = f"bundle install {data}/clinic-t3-1.fedmap --fingerprint {study.fingerprint}"
        return [install, f"predict --bundle clinic-t3 --data {data}/patients.csv --out {out}"]

    for line in steps(str(folder), str(folder / "expected.csv")):
        done = fedmap_site(*line.split(), folder=folder)
        assert done.returncode == 0, done.stderr
    return steps(data, out)


def assert_predicted(folder: Path, out: Path) -> None:
    if FACTS["role"] == "site":
        assert out.read_bytes() == (folder / "expected.csv").read_bytes()


def instructions(sections: tuple[int, ...]) -> list[str]:
    """The commands of INSTALL.md, as it is in the archive."""
    parts = re.split(r"^## (?=\d)", read_from_kit("INSTALL.md"), flags=re.MULTILINE)[1:]
    wanted = [part for part in parts if int(part[0]) in sections]
    blocks = [block for part in wanted for block in re.findall(r"```bash\n(.*?)```", part, re.DOTALL)]
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def follow(machine: LoopbackOnly, sections: tuple[int, ...], *more: str) -> dict[str, Outcome]:
    """Runs the page and what the test adds; everything has to end well, `doctor` as a new machine has it."""
    commands = [INTERFACES, *instructions(sections), *more]
    started = time.monotonic()
    outcomes = machine.run(commands, timeout=1800)
    took = time.monotonic() - started
    for done in outcomes:
        if re.search(r" doctor\b", done.command):
            assert_doctor_of_a_new_machine(done)
        else:
            assert done.code == 0, f"{done.command}\n{done.out}\n{done.err}"
    assert any(" doctor" in done.command for done in outcomes)
    assert re.findall(r"^ *(\w+):", outcomes[0].out, re.MULTILINE) == ["lo"]
    size = ARCHIVE.stat().st_size / 1e6
    os.write(1, f"\n{KIT}: {size:.0f} MB; installed and used in {took:.0f} s\n".encode())
    return {done.command: done for done in outcomes}


def assert_doctor_of_a_new_machine(done: Outcome) -> None:
    """Every check with its verdict, in order; a failing one fails for the reason that is expected of it."""
    told = f"{done.command}\n{done.out}\n{done.err}"
    if FACTS["role"] == "site":
        assert done.code == DOCTOR_FOUND_A_FAULT, told
        found = re.findall(r"^(ok|warn|fail) +([a-z ]+): (.*(?:\n +next: .*)?)", done.out, re.MULTILINE)
        assert [(check, verdict) for verdict, check, _ in found] == [one[:2] for one in SITES_DOCTOR], told
        for (_, _, said), (_, _, expected) in zip(found, SITES_DOCTOR, strict=True):
            assert re.search(expected, said), told
        return
    assert done.code == 0, told
    doctors = [one for one in blocks_of("operator.md") if one.commands[0] == "fedmap-aggregator doctor"]
    (page,) = [one.prints for one in doctors if one.prints]
    assert _table(done.out) == _table("\n".join(page)), told
    assert {verdict for _, verdict in _table(done.out)} == {"ok"}, told


def _table(printed: str) -> list[tuple[str, str]]:
    """Checks and verdicts of the aggregator's doctor."""
    return re.findall(r"^([a-z][a-z ]*?)  +(ok|warn|fail)  ", printed, re.MULTILINE)


def without_other_services(python: str) -> str:
    """A command that ends well where the other services' code is absent."""
    others = {"site": ("fedmap_aggregator", "fedmap_lab"), "aggregator": ("fedmap_site", "fedmap_lab")}[
        FACTS["role"]
    ]
    return f"{python} -c 'import importlib.util as u; assert not any(map(u.find_spec, {json.dumps(others)}))'"


@pytest.mark.parametrize("name", ["wheels", "image"])
def test_the_bills_are_valid_and_every_python_part_states_its_licence(name: str) -> None:
    text = read_from_kit(f"sbom/{name}.cdx.json")
    assert faults_of(text) == []
    parts = [part for part in json.loads(text)["components"] if part["purl"].startswith("pkg:pypi/")]
    stated = {
        part["name"]: {
            one.get("expression") or one["license"].get("id") or one["license"]["name"]
            for one in part.get("licenses", ())
        }
        for part in parts
    }
    assert len(stated) > 20
    assert [part for part, licences in stated.items() if not licences] == []
    for part, licence in COPYLEFT[FACTS["role"]].items():
        assert stated[part] == {licence}
        assert part in read_from_kit("NOTICE")
        assert f"| {part} |" in read_from_kit("licences/README.md")


def test_the_kit_installs_with_plain_python_and_works(machine: LoopbackOnly, tmp_path: Path) -> None:
    use = predictions(tmp_path, str(tmp_path), f"{tmp_path}/plain.csv")
    bin_folder = "/opt/fedmap/bin"
    more = [f"{bin_folder}/fedmap-site {line}" for line in use]
    follow(machine, PLAIN_PYTHON, without_other_services(f"{bin_folder}/python"), *more)
    assert_predicted(tmp_path, tmp_path / "plain.csv")
    installed = sum(path.stat().st_size for path in (machine.scratch / "opt").rglob("*") if path.is_file())
    os.write(1, f"/opt/fedmap: {installed / 1e6:.0f} MB\n".encode())


def test_the_kit_installs_into_an_empty_container_store_and_works(
    machine: LoopbackOnly, tmp_path: Path
) -> None:
    for name, mode in (("data", 0o755), ("volume", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    use = predictions(tmp_path / "data", "/data", "/var/lib/fedmap/box.csv")
    mounts = f"--volume {tmp_path}/data:/data:ro --volume {tmp_path}/volume:/var/lib/fedmap"
    image = FACTS["image"]["reference"]
    start = f"podman run --rm {HARDENED} {mounts}"
    more = [f"{start} {image} {line}" for line in use]
    done = follow(machine, CONTAINERS, without_other_services(f"{start} --entrypoint python {image}"), *more)
    (inspected,) = [outcome for outcome in done.values() if "image inspect" in outcome.command]
    assert inspected.out.strip().removeprefix("sha256:") == FACTS["image"]["id"].removeprefix("sha256:")
    assert_predicted(tmp_path / "data", tmp_path / "volume" / "box.csv")
    packed = (machine.work / KIT / FACTS["image"]["file"]).stat().st_size
    os.write(1, f"{FACTS['image']['file']}: {packed / 1e6:.0f} MB\n".encode())
