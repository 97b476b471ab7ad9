"""What can be said of the files in deploy/ without a container; tests/containers has the rest."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedmap.process.settings import read_config
from fedmap_site.config import SiteConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = (DEPLOY / "site_agent" / "fedmap-site.service", DEPLOY / "aggregator" / "fedmap-aggregator.service")
MOST_EXPOSED = 2.0  # of 10, as systemd-analyze counts


def analyse(*arguments: str | Path) -> str:
    """`systemd-analyze` needs no running systemd for a file."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    done = subprocess.run(
        ["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_valid_and_starts_a_command_that_there_is(unit: Path, tmp_path: Path) -> None:
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace("/opt/fedmap/bin", str(Path(sys.executable).parent)))
    assert analyse("verify", installed) == ""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_hardened(unit: Path) -> None:
    verdict = analyse("security", "--offline=true", unit).strip().splitlines()[-1]
    assert float(verdict.partition(".service:")[2].split()[0]) <= MOST_EXPOSED


def test_the_configuration_for_the_container_is_read_and_writes_only_to_the_volume() -> None:
    config = read_config(DEPLOY / "site_agent" / "config.container.toml", SiteConfig)
    assert config.site.state == Path("/var/lib/fedmap/state")
    assert config.data.file == Path("/data/patients.csv")


def test_the_compose_file_mounts_and_the_images_copy_what_there_is() -> None:
    mounted = re.findall(r"[ -](\./[\w/]+)", (ROOT / "docker-compose.yml").read_text())
    copied = [
        place
        for file in DEPLOY.glob("*/Dockerfile")
        for words in re.findall(r"^COPY (?!--)(.*) \S+$", file.read_text(), re.MULTILINE)
        for place in words.split()
    ]
    assert len(mounted) >= 4
    assert len(copied) >= 4 * 3
    assert [place for place in (*mounted, *copied) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("module", sorted((DEPLOY / "federation").glob("*.py")), ids=lambda path: path.stem)
def test_the_steps_of_the_compose_federation_run_on_the_python_of_any_image(module: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("deploy.federation")} == set()


VERSION = r"(?:fedmap-\w+:|VERSION(?:=|:-)|newTag: |^version = \"|fedmap[\w-]*(?:\[\w+\])?==)(\d+\.\d+\.\d+)"
VERSIONED = (
    "pyproject.toml",
    "docker-compose.yml",
    "deploy/README.md",
    "deploy/federation/example.env",
    "deploy/site_agent/docker-compose.yml",
    "docs/clinic.md",
    *(f"deploy/{image}/Dockerfile" for image in ("aggregator", "site_agent", "lab")),
    *(
        f"{root}/pyproject.toml"
        for root in ("aggregator", "common", "integrations/flower", "lab", "site_agent")
    ),
    *(f"integrations/flower/fedmap_flower/apps/{app}/pyproject.toml" for app in ("deployment", "simulation")),
    *(
        f"deploy/kubernetes/overlays/{overlay}/kustomization.yaml"
        for overlay in ("aggregator-postgres", "aggregator-sqlite", "site-proxy", "site-review")
    ),
)


@pytest.mark.parametrize("file", VERSIONED)
def test_every_file_names_the_version_of_the_project(file: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    named = re.findall(VERSION, (ROOT / file).read_text(), re.MULTILINE)
    assert set(named) == {project}
