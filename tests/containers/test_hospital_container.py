"""Hospital IT's compose file in real containers: hardened, on a network that only reaches the aggregator."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.containers.centre import READY_WITHIN_SECONDS, Centre, running_centre
from tests.containers.engine import IMAGES, ROOT, Engine, wait_until

pytestmark = pytest.mark.containers

DEPLOY = ROOT / "deploy" / "site_agent"
FILES = ("--file", "docker-compose.yml", "--file", "network.yml")
SETTINGS = {"FEDMAP_UID": "12345", "FEDMAP_GID": "12345", "FEDMAP_IMAGE": IMAGES["site"]}
STOPS_WITHIN_SECONDS = 10.0
REACHED = """
import json, socket, sys
def reached(host, port):
    try:
        socket.create_connection((host, port), timeout=3).close()
        return True
    except OSError:
        return False
print(json.dumps({name: reached(*at) for name, at in
  {"aggregator": ("aggregator", 8443), "outside": ("192.0.2.1", 443), "host": (sys.argv[1], 22)}.items()}))
"""
WRITTEN = """
import json, os, pathlib
def refused(path):
    try:
        pathlib.Path(path, "probe").write_text("x")
        return False
    except OSError:
        return True
state = pathlib.Path("/var/lib/fedmap/state").stat()
print(json.dumps({"refused": [p for p in ("/", "/data", "/etc/fedmap", "/opt/fedmap") if refused(p)],
  "uid": os.getuid(), "owner": state.st_uid, "mode": oct(state.st_mode & 0o777)}))
"""


@dataclass(frozen=True)
class Hospital:
    """A folder as hospital IT has it: the compose file, `config` and `data`."""

    engine: Engine
    centre: Centre
    folder: Path

    def compose(self, *arguments: str) -> str:
        return self.engine.compose(self.folder, self.project, *FILES, *arguments, **SETTINGS).stdout

    @property
    def project(self) -> str:
        return f"{self.centre.prefix}-site"

    @property
    def container(self) -> str:
        labels = (self.project, "agent")
        keys = ("com.docker.compose.project", "com.docker.compose.service")
        wanted = [f"--filter=label={key}={label}" for key, label in zip(keys, labels, strict=True)]
        (name,) = self.engine.run("ps", "--all", *wanted, "--format", "{{.Names}}").stdout.split()
        return name

    def inside(self, code: str, *arguments: str) -> Any:
        return json.loads(self.engine.run("exec", self.container, "python", "-c", code, *arguments).stdout)

    def wait_until_healthy(self, healthy: bool = True) -> None:
        wait_until(
            lambda: self.engine.healthy(self.container) is healthy,
            READY_WITHIN_SECONDS,
            "healthy agent" if healthy else "unhealthy agent",
            lambda: self.engine.logs(self.container),
        )


@pytest.fixture(scope="module")
def hospital(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospital]:
    """Enrolled by the commands of the compose file's own header, and running."""
    folder = tmp_path_factory.mktemp("hospital")
    with running_centre(engine, folder) as centre:
        site = Hospital(engine, centre, folder)
        config, data = folder / "config", folder / "data"
        config.mkdir()
        data.mkdir()
        shutil.copy(DEPLOY / "docker-compose.yml", folder)
        shutil.copy(DEPLOY / "policy.toml", config)
        sample = (DEPLOY / "config.container.toml").read_text()
        (config / "site.toml").write_text(sample.replace("aggregator.example.org", "aggregator"))
        (config / "joining.pem").write_text(centre.joining_file())
        (data / "patients.csv").write_text("age,sex\n50,F\n")
        (folder / "network.yml").write_text(
            f"networks:\n  default:\n    name: {centre.network}\n    external: true\n"
        )
        for path in (config, data, *config.iterdir(), *data.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        invited = centre.command("invite", "my-hospital", "--tier", "1")
        secrets = ("--ca-fingerprint", invited["ca_fingerprint"], "--token", invited["token"])
        try:
            site.compose("run", "--rm", "agent", "enrol", "--joining", "/etc/fedmap/joining.pem", *secrets)
            site.compose("up", "--detach")
            site.wait_until_healthy()
            yield site
        finally:
            engine.remove_project(folder, site.project, *FILES, **SETTINGS)


def test_the_agent_reaches_the_aggregator_and_nothing_else(hospital: Hospital) -> None:
    networks = hospital.engine.inspect(hospital.container)["NetworkSettings"]["Networks"]
    gateway = networks[hospital.centre.network]["Gateway"] or "192.0.2.2"
    assert hospital.inside(REACHED, gateway) == {"aggregator": True, "outside": False, "host": False}


def test_the_agent_writes_to_its_state_alone_and_keeps_that_private(hospital: Hospital) -> None:
    assert hospital.inside(WRITTEN) == {
        "refused": ["/", "/data", "/etc/fedmap", "/opt/fedmap"],
        "uid": 12345,
        "owner": 12345,
        "mode": "0o700",
    }


def test_the_container_is_hardened_as_the_compose_file_says(hospital: Hospital) -> None:
    host = hospital.engine.inspect(hospital.container)["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"])
    status = hospital.engine.run(
        "exec", hospital.container, "python", "-c", "print(open('/proc/1/status').read())"
    )
    lines = dict(line.split(":\t", 1) for line in status.stdout.splitlines() if ":\t" in line)
    assert {int(lines[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert lines["NoNewPrivs"] == "1"


def test_doctor_in_the_container_finds_nothing_wrong(hospital: Hospital) -> None:
    printed = hospital.engine.run("exec", hospital.container, "fedmap-site", "doctor", "--json").stdout
    assert [finding for finding in json.loads(printed) if finding["status"] == "fail"] == []


def test_an_agent_whose_aggregator_is_gone_is_unhealthy_until_it_is_back(hospital: Hospital) -> None:
    engine, centre = hospital.engine, hospital.centre
    engine.run("kill", centre.container)
    hospital.wait_until_healthy(False)
    said = engine.try_run("exec", hospital.container, "fedmap-site", "health")
    assert said.returncode == 1
    assert said.stdout.startswith("not healthy: ")
    engine.run("start", centre.container)
    centre.wait_until_healthy()
    hospital.wait_until_healthy()


def test_sigterm_ends_the_agent_within_seconds(hospital: Hospital) -> None:
    assert stopped(hospital.engine, hospital.container) == 0


def test_the_agent_goes_on_with_a_bare_engine_and_without_any_tmpfs(hospital: Hospital) -> None:
    """The same state, and the options that the strictest platform gives; it was stopped just now."""
    engine, name = hospital.engine, f"{hospital.project}-bare"
    mounts = (
        f"{hospital.project}_state:/var/lib/fedmap",
        f"{hospital.folder / 'config'}:/etc/fedmap:ro",
        f"{hospital.folder / 'data'}:/data:ro",
    )
    options = ("--network", hospital.centre.network, *(part for m in mounts for part in ("--volume", m)))
    try:
        engine.run("run", "--detach", "--name", name, *options, *engine.hardened, IMAGES["site"])
        wait_until(
            lambda: engine.healthy(name), READY_WITHIN_SECONDS, "healthy agent", lambda: engine.logs(name)
        )
        assert stopped(engine, name) == 0
    finally:
        engine.try_run("rm", "--force", name)
    engine.run("start", hospital.container)
    hospital.wait_until_healthy()


def test_sigterm_ends_the_aggregator_within_seconds_and_leaves_no_zombie(hospital: Hospital) -> None:
    engine, centre = hospital.engine, hospital.centre
    counted = """
import pathlib
stats = [p.read_text().rpartition(")")[2].split()[0] for p in pathlib.Path("/proc").glob("[0-9]*/stat")]
print(stats.count("Z"), len(stats) > 1)
"""
    assert engine.run("exec", centre.container, "python", "-c", counted).stdout.split() == ["0", "True"]
    assert stopped(engine, centre.container) == 0
    engine.run("start", centre.container)
    centre.wait_until_healthy()
    hospital.wait_until_healthy()


def stopped(engine: Engine, container: str) -> int:
    """The exit code after SIGTERM; a container that had to be killed has another one."""
    began = time.monotonic()
    engine.run("stop", "--time", "60", container)
    assert time.monotonic() - began < STOPS_WITHIN_SECONDS
    return int(engine.state(container)["ExitCode"])
