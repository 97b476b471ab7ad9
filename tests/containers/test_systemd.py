"""The site agent's unit under a real systemd, by the commands of deploy/README.md and docs/hospital-it.md.

systemd is process 1 of a container. The agent comes from its image, since tests/deploy/plain_installation.py
has the installation; everything after that is run as written.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.containers.centre import READY_WITHIN_SECONDS, Centre, running_centre
from tests.containers.engine import IMAGES, ROOT, Engine, wait_until
from tests.containers.hospital import ROWS, SITE, fill_in, open_to_any_user, readme_block
from tests.lab.conftest import write_site
from tests.services.guide_pages import console_lines

pytestmark = pytest.mark.containers

CONFIG_FAULT = "78"


@dataclass(frozen=True)
class Machine:
    centre: Centre

    @property
    def name(self) -> str:
        return f"{self.centre.prefix}-machine"

    def run(self, line: str) -> str:
        return self.centre.engine.run("exec", self.name, "bash", "-euc", line).stdout

    def shows(self, *properties: str) -> dict[str, str]:
        asked = "".join(f" --property={name}" for name in properties)
        told = self.run(f"systemctl show fedmap-site{asked}")
        return dict(line.split("=", 1) for line in told.splitlines())

    def story(self) -> str:
        return self.run("journalctl -u fedmap-site | tail -n 40")


@pytest.fixture(scope="module")
def machine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Set up and enrolled by the commands of deploy/README.md; the service is not started yet."""
    if engine.program != "podman":
        pytest.skip("docker has no option for systemd as process 1")
    folder = tmp_path_factory.mktemp("systemd")
    image = "fedmap-test-systemd:latest"
    engine.build(
        ROOT / "tests" / "containers" / "systemd", image, "--build-arg", f"SITE_IMAGE={IMAGES['site']}"
    )
    with running_centre(engine, folder) as centre:
        made, checkout = Machine(centre), folder / "checkout"
        shutil.copytree(ROOT / "deploy" / "site_agent", checkout / "deploy" / "site_agent")
        (checkout / "joining.pem").write_text(centre.joining_file())
        write_site(checkout / "patients.csv", ROWS, seed=7)
        open_to_any_user(checkout)
        told = centre.command("invite", SITE, "--tier", "1")
        filled = {"FINGERPRINT": told["ca_fingerprint"], "TOKEN": told["token"]}
        try:
            options = ("--privileged", "--systemd=always", "--network", centre.network)
            engine.run(
                *("run", "--detach", "--name", made.name, *options),
                *("--volume", f"{checkout}:/checkout:ro", image),
            )
            wait_until(
                lambda: engine.try_run("exec", made.name, "systemctl", "is-system-running").returncode == 0,
                READY_WITHIN_SECONDS,
                "running systemd",
                lambda: engine.logs(made.name),
            )
            for line in steps_after_the_installation():
                made.run(fill_in(line, filled))
            yield made
        finally:
            engine.try_run("rm", "--force", "--time", "0", made.name)


def steps_after_the_installation() -> list[str]:
    """Of the block for plain Python: all but the installation before and the start after."""
    venv, pip, *steps, enable = readme_block("python3 -m venv")
    assert ("venv" in venv, "pip install" in pip, enable) == (True, True, started_by())
    place = next(number for number, line in enumerate(steps) if line.startswith("sed "))
    steps[place:place] = [  # "set name, address and file in it"
        "sed -i 's#aggregator.example.org#aggregator#' /etc/fedmap/site.toml",
        "install -m 0640 -g fedmap-site patients.csv /etc/fedmap/",
    ]
    return steps


def started_by() -> str:
    return of_the_page("systemctl enable")


def of_the_page(start: str) -> str:
    (line,) = [line for line in console_lines("hospital-it.md") if line.startswith(start)]
    return line


def test_the_unit_starts_the_agent_and_the_pages_commands_show_it(machine: Machine) -> None:
    machine.run(started_by())
    wait_until(
        lambda: '"connected"' in machine.run(of_the_page("journalctl")),
        READY_WITHIN_SECONDS,
        "connected agent",
        machine.story,
    )
    told = machine.run(of_the_page("systemctl status"))
    assert "Active: active (running)" in told
    assert "fedmap-site.service; enabled" in told
    assert "running, connected" in machine.run(
        "runuser -u fedmap-site -- /opt/fedmap/bin/fedmap-site status --config /etc/fedmap/site.toml"
    )


def test_the_service_stops_cleanly_within_its_time(machine: Machine) -> None:
    machine.run("systemctl stop fedmap-site")
    assert machine.shows("ExecMainStatus", "Result") == {"ExecMainStatus": "0", "Result": "success"}


def test_a_faulty_configuration_ends_the_service_until_somebody_mends_it(machine: Machine) -> None:
    machine.run("cp /etc/fedmap/site.toml /root/ && echo 'nonsense = 1' >> /etc/fedmap/site.toml")
    machine.run("systemctl start fedmap-site")  # started means executed; what it says comes after
    wait_until(
        lambda: machine.shows("ActiveState") == {"ActiveState": "failed"},
        READY_WITHIN_SECONDS,
        "failed service",
        machine.story,
    )
    assert machine.shows("ExecMainStatus", "NRestarts") == {"ExecMainStatus": CONFIG_FAULT, "NRestarts": "0"}
    said = machine.centre.engine.try_run("exec", machine.name, "systemctl", "status", "fedmap-site").stdout
    assert "status=78/CONFIG" in said
    assert re.search("nonsense", machine.story())
    machine.run("cp /root/site.toml /etc/fedmap/ && systemctl start fedmap-site")
    wait_until(
        lambda: (
            "running, connected"
            in machine.run(
                "runuser -u fedmap-site -- /opt/fedmap/bin/fedmap-site status --config /etc/fedmap/site.toml"
            )
        ),
        READY_WITHIN_SECONDS,
        "connected agent",
        machine.story,
    )
