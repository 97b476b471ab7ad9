"""Blocks of the guides that stand alone, run as written: the centre's container, and a clinic's."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import IMAGES, ROOT, Engine, wait_until
from tests.containers.hospital import in_a_shell, readme_block
from tests.services.guide_pages import console_lines
from tests.site_agent.tier_bundles import patients, trained, write_table

pytestmark = pytest.mark.containers

CENTRE = "fedmap-aggregator"
"""What deploy/README.md calls the container and its volume: somebody may have one already."""
START_SECONDS = 300.0


@pytest.fixture
def free_name(engine: Engine) -> Iterator[str]:
    """The guide's name for an aggregator, while no aggregator of this machine has it."""
    for kind in ("container", "volume"):
        if engine.try_run(kind, "inspect", CENTRE).returncode == 0:
            pytest.skip(f"this machine has a {kind} called {CENTRE}")
    try:
        yield CENTRE
    finally:
        engine.try_run("rm", "--force", CENTRE)
        engine.try_run("volume", "rm", "--force", CENTRE)


def test_the_centres_container_starts_by_the_commands_of_the_readme(
    engine: Engine, free_name: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    sample = (ROOT / "deploy" / "aggregator" / "config.toml").read_text()
    sample = re.sub(r'^state = "[^"]*"', 'state = "/var/lib/fedmap/state"', sample, flags=re.MULTILINE)
    (config / "aggregator.toml").write_text(sample)
    for path in (tmp_path, config, config / "aggregator.toml"):
        path.chmod(0o755)
    *start, invite = readme_block("docker volume create fedmap-aggregator")
    in_a_shell(engine, "\n".join(start), tmp_path)
    wait_until(
        lambda: engine.healthy(free_name),
        START_SECONDS,
        "healthy aggregator",
        lambda: engine.logs(free_name),
    )
    assert "Invitation of st-elsewhere (T1)" in in_a_shell(engine, invite, tmp_path)


@pytest.fixture
def volume(engine: Engine, tmp_path: Path) -> Iterator[str]:
    name = f"fedmap-test-{tmp_path.name}".replace("_", "-")
    engine.run("volume", "create", name)
    try:
        yield name
    finally:
        engine.try_run("volume", "rm", "--force", name)


def test_a_clinic_predicts_in_the_container_without_configuration_and_without_a_network(
    engine: Engine, volume: str, tmp_path: Path
) -> None:
    """docs/clinic.md: the same commands behind one that starts the container."""
    study = trained(tmp_path)
    study.bundle(tmp_path, tier=3).chmod(0o644)
    people = patients(60, seed=4)
    write_table(tmp_path / "patients.csv", people, event=None, grade=None, years=None, happened=None)
    for path in (tmp_path, tmp_path / "patients.csv"):
        path.chmod(0o755)
    lines = [line for line in console_lines("clinic.md") if line.startswith("docker ")]
    filled = {"FINGERPRINT": study.fingerprint, "fedmap-clinic": volume}
    for line in lines:
        for name, value in filled.items():
            line = line.replace(name, value)
        in_a_shell(engine, line.replace("fedmap-site:0.3.0", IMAGES["site"]), tmp_path)
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert {row["class"] for row in rows} == {"well", "ill"}
