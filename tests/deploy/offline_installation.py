"""The offline kit for real: unpacked, installed and used where there is no interface but loopback.

`make offline-kit-test` runs it against the archive that FEDMAP_KIT names; `make test` does not, since it
takes minutes, root and a container engine. Every command of the kit's INSTALL.md is run as written.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.loopback_only import LoopbackOnly, Outcome
from tests.site_agent.tier_bundles import Study, fedmap_site, patients, trained, write_table

ARCHIVE = Path(os.environ["FEDMAP_KIT"]).resolve()
KIT = ARCHIVE.name.removesuffix(".tar")
DOCTOR_FOUND_A_FAULT = 3
HARDENED = "--network none --read-only --user 12345 --cap-drop ALL --security-opt no-new-privileges"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LoopbackOnly]:
    made = LoopbackOnly(tmp_path / "machine")
    for path in (ARCHIVE, ARCHIVE.with_name(f"{ARCHIVE.name}.sha256")):
        (made.work / path.name).symlink_to(path)
    yield made
    shutil.rmtree(made.scratch)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A released model, and the predictions that this checkout makes with it."""
    study = trained(tmp_path)
    study.bundle(tmp_path, tier=3)
    people = patients(60, seed=4)
    write_table(tmp_path / "patients.csv", people, event=None, grade=None, years=None, happened=None)
    for command in _prediction(study, tmp_path / "expected.csv"):
        done = fedmap_site(*command.split(), folder=tmp_path)
        assert done.returncode == 0, done.stderr
    return study


def _prediction(study: Study, out: Path | str, folder: str = "") -> list[str]:
    return [
        f"bundle install {folder}clinic-t3-1.fedmap --fingerprint {study.fingerprint}",
        f"predict --bundle clinic-t3 --data {folder}patients.csv --out {out}",
    ]


def instructions(*sections: int) -> list[str]:
    """The commands of INSTALL.md, as it is in the archive."""
    with tarfile.open(ARCHIVE) as tar:
        file = tar.extractfile(f"{KIT}/INSTALL.md")
        assert file is not None
        text = file.read().decode()
    parts = {int(part[0]): part for part in re.split(r"^## (?=\d)", text, flags=re.MULTILINE)[1:]}
    blocks = [
        block for section in sections for block in re.findall(r"```bash\n(.*?)```", parts[section], re.DOTALL)
    ]
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def judge(outcomes: list[Outcome]) -> dict[str, Outcome]:
    """Everything ended well, and `doctor` found what a machine without data and invitation lacks, no more."""
    for done in outcomes:
        expected = DOCTOR_FOUND_A_FAULT if re.search(r" doctor\b", done.command) else 0
        assert done.code == expected, f"{done.command}\n{done.out}\n{done.err}"
        if expected:
            failed = re.findall(r"^fail +(.*?):", done.out, re.MULTILINE)
            assert failed == ["data", "identity"], done.out
    return {done.command: done for done in outcomes}


def report(what: str, **figures: float) -> None:
    """Into the terminal: sizes and times are for docs/benchmarks.md."""
    line = ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in figures.items())
    os.write(1, f"\n{what}: {line}\n".encode())


def test_the_kit_installs_with_plain_python_and_predicts(
    machine: LoopbackOnly, study: Study, tmp_path: Path
) -> None:
    program = "/opt/fedmap/bin/fedmap-site"
    commands = ["cat /proc/net/dev", *instructions(1, 3), f"cd {tmp_path}"]
    commands += [f"{program} {line}" for line in _prediction(study, "plain.csv")]
    commands += [f"{program.removesuffix('fedmap-site')}python -c 'import aggregator'"]
    started = time.monotonic()
    *outcomes, aggregator = machine.run(commands, timeout=1200)
    took = time.monotonic() - started
    done = judge(outcomes)
    assert re.findall(r"^ *(\w+):", done["cat /proc/net/dev"].out, re.MULTILINE) == ["lo"]
    assert "No module named 'aggregator'" in aggregator.err
    assert (tmp_path / "plain.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    installed = sum(path.stat().st_size for path in (machine.scratch / "opt").rglob("*") if path.is_file())
    report(
        "plain Python", archive_MB=ARCHIVE.stat().st_size / 1e6, installed_MB=installed / 1e6, seconds=took
    )


def test_the_kit_installs_with_containers_and_predicts(
    machine: LoopbackOnly, study: Study, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    steps = instructions(1, 2)
    (loaded,) = [line for line in steps if line.startswith("podman load")]
    (inspected,) = [line for line in steps if line.startswith("podman image inspect")]
    image = inspected.split()[-1]
    mounts = f"--volume {tmp_path}:/data:ro --volume {tmp_path}/out:/var/lib/fedmap"
    start = f"podman run --rm {HARDENED} {mounts} --env XDG_DATA_HOME=/var/lib/fedmap {image}"
    commands = ["cat /proc/net/dev", "podman images --quiet", *steps]
    commands += [f"{start} {line}" for line in _prediction(study, "/var/lib/fedmap/box.csv", "/data/")]
    commands += [f"podman run --rm --network none --entrypoint python {image} -c 'import aggregator'"]
    started = time.monotonic()
    *outcomes, aggregator = machine.run(commands, timeout=1800)
    took = time.monotonic() - started
    done = judge(outcomes)
    assert re.findall(r"^ *(\w+):", done["cat /proc/net/dev"].out, re.MULTILINE) == ["lo"]
    assert done["podman images --quiet"].out == ""
    assert (
        done[inspected].out.strip().removeprefix("sha256:") in (machine.work / KIT / "INSTALL.md").read_text()
    )
    assert image in done[loaded].out
    assert "No module named 'aggregator'" in aggregator.err
    assert (tmp_path / "out" / "box.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    (packed,) = (machine.work / KIT / "image").iterdir()
    report("containers", image_packed_MB=packed.stat().st_size / 1e6, seconds=took)
