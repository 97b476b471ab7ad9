"""Hospital IT's compose file in real containers: hardened, on a network that only reaches the aggregator."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.containers.centre import READY_WITHIN_SECONDS, running_centre
from tests.containers.engine import IMAGES, Engine, wait_until
from tests.containers.hospital import SITE, Hospital, container_steps, readme_block, running_hospital
from tests.services.guide_pages import console_lines

pytestmark = pytest.mark.containers

STOPS_WITHIN_SECONDS = 10.0
REACHED = """
import json, socket, sys
def reached(place):
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return True
    except OSError:
        return False
print(json.dumps([reached(place) for place in sys.argv[1:]]))
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


@pytest.fixture(scope="module")
def hospital(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospital]:
    folder = tmp_path_factory.mktemp("hospital")
    with running_centre(engine, folder) as centre, running_hospital(centre, folder) as site:
        yield site


def test_the_commands_of_the_guide_lead_from_an_invitation_to_a_running_agent(hospital: Hospital) -> None:
    """They have succeeded; this is what they said."""
    enrol, doctor, studies, approve, dry_run, up, status = container_steps()
    assert f"{SITE} is enrolled." in hospital.printed[enrol]
    verdicts = [line.split()[0] for line in hospital.printed[doctor].splitlines() if line[:1].strip()]
    assert verdicts == ["ok"] * 11
    assert "Before you approve iron:" in hospital.printed[studies]
    assert "takes part in iron, approved by Data protection" in hospital.printed[approve]
    assert "Nothing was sent." in hospital.printed[dry_run]
    assert up.endswith("up --detach")
    assert re.search(r"^agent +running, connected since", hospital.printed[status], re.MULTILINE)


def test_the_readme_of_the_deploy_folder_gives_the_same_commands() -> None:
    given = [line for line in readme_block("mkdir -p fedmap/config") if line.startswith("docker ")]
    assert [line for line in container_steps() if "dry-run" not in line] == given


@pytest.fixture
def neighbour(hospital: Hospital) -> Iterator[str]:
    """host:port of a program that listens in the engine's usual network, which leads outside."""
    engine, name = hospital.engine, f"{hospital.project}-neighbour"
    serving = ("--entrypoint", "python", IMAGES["site"], "-m", "http.server", "8000")
    try:
        engine.run("run", "--detach", "--name", name, *serving)
        place = f"{engine.inspect(name)['NetworkSettings']['IPAddress']}:8000"
        asked = ("run", "--rm", "--entrypoint", "python", IMAGES["site"], "-c", REACHED, place)
        wait_until(
            lambda: json.loads(engine.run(*asked).stdout) == [True],
            60,
            "neighbour",
            lambda: engine.logs(name),
        )
        yield place
    finally:
        engine.try_run("rm", "--force", "--time", "0", name)


@pytest.fixture
def listening_host() -> Iterator[int]:
    """A port of this machine that answers on all its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield int(server.getsockname()[1])


def test_the_agent_reaches_the_aggregator_and_no_other_network(hospital: Hospital, neighbour: str) -> None:
    places = ("aggregator:8443", neighbour, "192.0.2.1:443", "fedmap.example.org:443")
    assert hospital.inside(REACHED, *places) == [True, False, False, False]


def test_the_rule_of_the_guide_closes_the_container_host_to_the_agent(
    hospital: Hospital, listening_host: int
) -> None:
    """Without it an engine's bridge lets every container reach its own host, internal network or not."""
    if hospital.engine.program != "podman":
        pytest.skip("how docker names its bridges is not known here")
    (rule,) = [line for line in console_lines("hospital-it.md") if line.startswith("iptables ")]
    network = hospital.engine.inspect(hospital.centre.network)
    host = f"{network['subnets'][0]['gateway']}:{listening_host}"
    closing = rule.replace("BRIDGE", network["network_interface"])
    assert hospital.inside(REACHED, "aggregator:8443", host) == [True, True]
    subprocess.run(closing.split(), check=True)
    try:
        assert hospital.inside(REACHED, "aggregator:8443", host) == [True, False]
    finally:
        subprocess.run(closing.replace(" -I ", " -D ").split(), check=True)


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
