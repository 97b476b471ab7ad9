"""docs/flower.md, command by command as written: the three ways, the release, and a deployment by hand."""

from __future__ import annotations

import re
import shlex
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from fedmap.study.run_folder import read_run
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import CertificateAuthority, key_pem, new_key
from fedmap_flower.processes.commands import command_path, environment, free_port, stop_group
from fedmap_flower.processes.commands import wait_until_healthy as wait_for

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "flower.md").read_text()
EXAMPLE = "superlink.example.org:8000"


def commands(language: str, beginning: str = "") -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith(beginning)]


def run(folder: Path, command: str, home: Path | None = None) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(folder: Path, name: str, command: str) -> Iterator[subprocess.Popen[bytes]]:
    program, *arguments = shlex.split(command)
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [command_path(program), *arguments],
            cwd=folder,
            env=environment(folder / f"home-{name}"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        stop_group(process)


def write_certificates(folder: Path) -> None:
    now = datetime.now(UTC)
    authority, _ = CertificateAuthority.create("guide", 2, now)
    key = new_key()
    identity = Identity("aggregator", "superlink")
    certificate = authority.issue(key.public_key(), identity, 2, now, ("localhost", "127.0.0.1"))
    files = {"ca.pem": authority.certificate_pem, "superlink.pem": certificate, "superlink.key": key_pem(key)}
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which the guide's relative paths lead to the plans."""
    (tmp_path / "lab").symlink_to(ROOT / "lab")
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.long
def test_the_three_ways_and_the_release_run_as_written(folder: Path) -> None:
    for command in commands("bash"):
        on_cluster = command.startswith("RAY_ADDRESS=")
        if on_cluster:
            run(folder, "ray start --head --port 0 --num-cpus 2 --include-dashboard false")
        try:
            run(folder, command)
        finally:
            if on_cluster:
                run(folder, "ray stop")
    priors = {(folder / "out" / way / "prior.safetensors").read_bytes() for way in ("simulated", "cluster")}
    priors.add((folder / "out" / "deployed" / "prior.safetensors").read_bytes())
    assert len(priors) == 1
    assert list((folder / "out").glob("*-t3-1.fedmap"))


@pytest.mark.long
def test_a_deployment_by_hand_runs_as_written(folder: Path) -> None:
    run(folder, commands("bash", "fedmap-lab cohort")[0])
    (digest,) = run(folder, commands("bash", "fedmap-flower terms")[0]).split()
    port, home = free_port(), folder / "home"
    (folder / "policy.toml").write_text('egress = "automatic"\nmin_rows = 10\nmin_events = 0\n')
    write_certificates(folder)
    address = f"localhost:{port}"
    home.mkdir()
    (toml,) = re.findall(r"```toml\n(.*?)```", GUIDE, flags=re.DOTALL)
    (home / "config.toml").write_text(
        toml.replace(EXAMPLE, address).replace("/etc/fedmap/ca.pem", str(folder / "ca.pem"))
    )
    (superlink,) = commands("sh", "flower-superlink")
    (keygen,), (node,), (study,) = (
        commands("sh", start) for start in ("ssh-keygen", "fedmap-flower node", "fedmap-flower run")
    )
    (register,) = re.findall(r"`(flwr supernode register [^`]*)`", GUIDE)
    with ExitStack() as stack:
        link = stack.enter_context(
            running(folder, "superlink", f"{superlink} --host 127.0.0.1 --port {port}")
        )
        trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        wait_for(link, f"https://{address}/health", folder / "superlink.log", trust)
        sites = sorted((folder / "out" / "cohort").glob("*.csv"))
        training = [
            path for path in sites if f"{path.stem},1," in (sites[0].parent / "sites.csv").read_text()
        ]
        for path in training:
            site = path.stem
            run(folder, keygen.replace("hospital-a", site))
            run(folder, register.replace("hospital-a", site), home)
            filled = node.replace("hospital-a", site).replace(EXAMPLE, address).replace("DIGEST", digest)
            filled = filled.replace("donors.csv", str(path)).replace("--state state", f"--state state-{site}")
            stack.enter_context(running(folder, site, filled))
        assert f"--sites {len(training)} " in study
        run(folder, study.replace("/srv/fedmap/out", str(folder / "out" / "by-hand")), home)
    told = read_run(folder / "out" / "by-hand").record
    assert len(told.regions) == len(training)
    assert not told.refusals


def test_the_program_says_its_version(tmp_path: Path) -> None:
    assert run(tmp_path, "fedmap-flower --version") == f"fedmap {version('fedmap')}\n"
