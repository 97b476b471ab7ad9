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

from tests.deploy.loopback_only import LoopbackOnly, Outcome
from tests.site_agent.tier_bundles import fedmap_site, patients, trained, write_table

ARCHIVE = Path(os.environ["FEDMAP_KIT"]).resolve()
KIT = ARCHIVE.name.removesuffix(".tar")
INTERFACES = "cat /proc/net/dev"
HARDENED = "--network none --read-only --user 12345 --cap-drop ALL --security-opt no-new-privileges"
NOT_YET_THERE = {"data", "identity", "state folder"}
"""What `doctor` misses at a site that has neither patients' files nor an invitation."""
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
        failed = set(re.findall(r"^fail +(.*?):", done.out, re.MULTILINE))
        if _is_a_sites_doctor(done):
            as_said = done.code == 3 and "data" in failed and failed <= NOT_YET_THERE
        else:
            as_said = done.code == 0 and not failed
        assert as_said, f"{done.command}\n{done.out}\n{done.err}"
    assert re.findall(r"^ *(\w+):", outcomes[0].out, re.MULTILINE) == ["lo"]
    size = ARCHIVE.stat().st_size / 1e6
    os.write(1, f"\n{KIT}: {size:.0f} MB; installed and used in {took:.0f} s\n".encode())
    return {done.command: done for done in outcomes}


def _is_a_sites_doctor(done: Outcome) -> bool:
    """It lacks data and an invitation, and says so; a new aggregator lacks nothing."""
    return FACTS["role"] == "site" and re.search(r" doctor\b", done.command) is not None


def without_other_services(python: str) -> str:
    """A command that ends well where the other services' code is absent."""
    others = {"site": ("aggregator", "lab"), "aggregator": ("site_agent", "lab")}[FACTS["role"]]
    return f"{python} -c 'import importlib.util as u; assert not any(map(u.find_spec, {json.dumps(others)}))'"


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
    start = (
        f"podman run --rm {HARDENED} {mounts} --env XDG_DATA_HOME=/var/lib/fedmap --env FEDMAP_SITE_CONFIG="
    )
    more = [f"{start} {image} {line}" for line in use]
    done = follow(machine, CONTAINERS, without_other_services(f"{start} --entrypoint python {image}"), *more)
    (inspected,) = [outcome for outcome in done.values() if "image inspect" in outcome.command]
    assert inspected.out.strip().removeprefix("sha256:") == FACTS["image"]["id"].removeprefix("sha256:")
    assert_predicted(tmp_path / "data", tmp_path / "volume" / "box.csv")
    packed = (machine.work / KIT / FACTS["image"]["file"]).stat().st_size
    os.write(1, f"{FACTS['image']['file']}: {packed / 1e6:.0f} MB\n".encode())
