"""What hospital IT gets wrong first, really done: `doctor` and `run` must both say which it is, in words.

Each fault is made on a real site folder; programs run as processes where the exit code is part of the answer.
"""

from __future__ import annotations

import datetime
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.errors import StorageError, UnreachableError
from fedmap.process.findings import Finding
from fedmap.process.settings import read_config
from fedmap.transport.client import Route
from fedmap_site.checkup.doctor import before_running, examine
from fedmap_site.config import SiteConfig
from fedmap_site.identity.files import LINK, write_identity
from fedmap_site.link.connection import Connection
from tests.aggregator.commands import agent
from tests.bad_input import OTHER_USER, as_other_user, fill, mounted, open_folder
from tests.lab.conftest import BINARY_PLAN
from tests.ran import Ran
from tests.site_agent.federation_double import AggregatorDouble, Authority, now
from tests.site_agent.intercepting_proxy import GATEWAY, InterceptingProxy
from tests.site_agent.running_agent import AgentSite


class Hospital:
    """A site in order, in a folder that other users may enter, but for what a test does to it."""

    def __init__(self, folder: Path, aggregator: AggregatorDouble) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        self.data = folder / "data" / "patients.csv"
        self.data.parent.mkdir()
        self.data.write_text("planted-identifier,1\n")
        (folder / "policy.toml").write_text('egress = "review"\n')
        self.config = folder / "site.toml"
        self.write(aggregator.address)
        write_identity(self.state, aggregator.authority.site("a", 10))

    def write(self, address: str, more: str = "") -> None:
        self.config.write_text(
            f'[site]\nname = "a"\nstate = "state"\n[data]\nfile = "data/patients.csv"\n'
            f'[aggregator]\naddress = "{address}"\n{more}'
        )

    def doctor(self) -> Finding:
        """The one thing that it finds wrong."""
        (found,) = [finding for finding in examine(self.config, now(), "1.0") if finding.verdict == "fail"]
        assert found.hint
        return found

    def start(self) -> list[Finding]:
        """What `run` says of this machine before it dials."""
        return before_running(read_config(self.config, SiteConfig), now())

    def run(self, *words: str) -> Ran:
        """`fedmap-site run`, which is expected to end by itself."""
        return agent(self.folder, "run", *words)


@pytest.fixture
def aggregator() -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        yield double


@pytest.fixture
def hospital(aggregator: AggregatorDouble) -> Iterator[Hospital]:
    with open_folder() as folder:
        yield Hospital(folder, aggregator)


def test_a_state_folder_of_another_user_is_named_with_both_numbers(hospital: Hospital) -> None:
    """As with a volume that root made, in a container that does not run as root."""
    doctor = as_other_user(hospital.folder, "fedmap_site.cli.main", "doctor").refused(3)
    told = f"this program runs as user {OTHER_USER}, and {hospital.state} belongs to user 0 with mode 700"
    assert told in doctor.stdout
    started = as_other_user(hospital.folder, "fedmap_site.cli.main", "run")
    started.refused(74, told)
    assert f"chown -R {OTHER_USER} {hospital.state}" in started.stderr


def test_a_configuration_that_the_account_may_not_read_is_no_wrong_usage(hospital: Hospital) -> None:
    hospital.config.chmod(0o600)
    as_other_user(hospital.folder, "fedmap_site.cli.main", "run").refused(
        78, f"this program runs as user {OTHER_USER}, and site.toml belongs to user 0"
    )


def test_a_patients_file_of_another_user_is_named_before_the_first_round(hospital: Hospital) -> None:
    hospital.data.chmod(0o600)
    hospital.state.chmod(0o777)
    doctor = as_other_user(hospital.folder, "fedmap_site.cli.main", "doctor")
    assert f"{hospital.data} belongs to user 0 with mode 600" in doctor.stdout
    assert "planted-identifier" not in doctor.stdout + doctor.stderr


def test_a_state_volume_that_is_not_mounted_is_no_reason_to_enrol_again(hospital: Hospital) -> None:
    shutil.rmtree(hospital.state)
    found = hospital.doctor()
    assert (found.name, "is the volume mounted" in found.hint) == ("state folder", True)
    hospital.run().refused(74, f"{hospital.state} is not there", "is the volume mounted")
    assert not hospital.state.exists(), "a fresh folder would hide that the volume is missing"


def test_an_empty_mount_point_asks_for_the_volume_before_it_asks_for_an_enrolment(hospital: Hospital) -> None:
    shutil.rmtree(hospital.state)
    hospital.state.mkdir(mode=0o700)
    assert "is the volume with its state folder" in hospital.doctor().hint
    hospital.run().refused(1, "is the volume with its state folder")


def test_a_data_volume_that_is_not_mounted_is_named_by_doctor_and_at_the_start(hospital: Hospital) -> None:
    hospital.data.unlink()
    found = hospital.doctor()
    assert f"{hospital.data}: no such file" in found.message
    assert f"{hospital.data.parent} is empty. Is the disk or volume mounted?" in found.hint
    assert [finding.hint for finding in hospital.start()] == [found.hint]
    (hospital.folder / "plan.toml").write_text(BINARY_PLAN)
    agent(hospital.folder, "check-data", "plan.toml").refused(74, "Is the disk or volume mounted?")


def test_a_certificate_for_another_host_is_named_by_doctor_and_by_run(hospital: Hospital) -> None:
    with AggregatorDouble(Authority(), hosts=("aggregator.example.org",)) as double:
        write_identity(hospital.state, double.authority.site())
        hospital.write(double.address)
        assert "does not cover localhost; it covers aggregator.example.org" in hospital.doctor().message
        with double.connection() as connection, pytest.raises(UnreachableError) as refused:
            connection.hello("1.0")
    assert "for another name than the one dialled" in refused.value.message


def test_a_proxy_that_intercepts_tls_is_named_with_its_issuer(
    hospital: Hospital, aggregator: AggregatorDouble
) -> None:
    with InterceptingProxy(hospital.folder) as proxy:
        hospital.write(aggregator.address, f'proxy = "{proxy.url}"\n')
        found = hospital.doctor()
        route = Route(aggregator.address, proxy.url)
        with (
            Connection(route, aggregator.authority.credentials()) as connection,
            pytest.raises(UnreachableError) as refused,
        ):
            connection.hello("1.0")
    assert (found.name, GATEWAY in found.message) == ("tls", True)
    assert "ask the network team for an exception" in found.hint
    assert "certificate is not trusted here" in refused.value.message
    assert "inspects TLS" in refused.value.hint
    assert set(proxy.granted) == {aggregator.address}
    assert proxy.read_along == 0, "nothing was said to somebody who reads along"


def test_a_running_agent_names_the_interception_once_and_goes_on_trying(
    tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    with InterceptingProxy(tmp_path) as proxy:
        site = AgentSite(tmp_path, aggregator)
        text = site.config_path.read_text()
        address = f'address = "{aggregator.address}"\n'
        site.config_path.write_text(text.replace(address, f'{address}proxy = "{proxy.url}"\n'))
        site.config = read_config(site.config_path, SiteConfig)
        with site.running():
            notice = site.wait_for_notice("not trusted here")
    assert "inspects TLS" in notice.hint


def test_a_clock_that_is_a_year_ahead_is_asked_about_before_a_new_invitation(
    tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    site = AgentSite(tmp_path, aggregator)
    later = now() + datetime.timedelta(days=365)
    found = [f for f in examine(site.config_path, later, "1.0") if f.verdict == "fail"]
    assert f"by this machine's clock ({later:%Y-%m-%d %H:%M} UTC)" in found[0].message
    assert found[0].hint.startswith("If the clock is right")
    told = before_running(site.config, later)
    assert f"by this machine's clock ({later:%Y-%m-%d %H:%M} UTC)" in told[0].message


def test_a_full_disk_is_named_by_doctor_and_stops_the_start(hospital: Hospital) -> None:
    with mounted(hospital.folder / "small", mib=1) as disk:
        shutil.copytree(hospital.state, disk / "state", symlinks=True)
        (disk / "state").chmod(0o700)
        hospital.write("localhost:1")
        hospital.config.write_text(hospital.config.read_text().replace('"state"', '"small/state"'))
        fill(disk)
        found = [f for f in examine(hospital.config, now(), "1.0") if f.verdict == "fail"]
        assert "the disk is full" in found[0].message
        assert "nothing written before is lost" in found[0].hint
        with pytest.raises(StorageError, match="the disk is full"):
            hospital.start()
        ended = hospital.run()
        ended.refused(74, "the disk is full")


def test_a_metrics_port_in_use_is_named_by_doctor_and_ends_the_start(
    hospital: Hospital, aggregator: AggregatorDouble
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        listen = f"127.0.0.1:{held.getsockname()[1]}"
        hospital.write(aggregator.address, f'[metrics]\nlisten = "{listen}"\n')
        held.settimeout(0)
        found = hospital.doctor()
        ended = hospital.run()
    told = f"cannot listen on {listen}: another program uses this port"
    assert (found.name, found.message) == ("metrics", told)
    ended.refused(69, told)
    assert "[metrics] listen" in ended.stderr


def test_the_metrics_port_of_the_running_agent_itself_is_no_fault(
    tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    site = AgentSite(tmp_path, aggregator)
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    site.config_path.write_text(site.config_path.read_text() + f'[metrics]\nlisten = "{listen}"\n')
    site.config = read_config(site.config_path, SiteConfig)
    with site.running():
        aggregator.wait_for(lambda: aggregator.polls)
        found = {f.name: f for f in examine(site.config_path, now(), "1.0")}
    assert (found["metrics"].verdict, found["metrics"].message) == ("ok", f"{listen} answers")


def test_a_misspelt_and_a_misplaced_key_are_led_to_the_right_one(hospital: Hospital) -> None:
    text = hospital.config.read_text().replace("address =", "adress =")
    hospital.config.write_text(f'{text}[log]\nproxy = "http://proxy:3128"\n')
    found, ended = hospital.doctor(), hospital.run()
    assert ended.returncode == 78
    for told in (
        "aggregator.adress: unknown key, did you mean `address`?",
        "log.proxy: unknown key here; there is `proxy` under [aggregator]",
    ):
        assert told in found.message
        assert told in ended.stderr


def test_an_error_in_json_mode_is_one_line_of_json(hospital: Hospital) -> None:
    hospital.config.unlink()
    ended = hospital.run("--json")
    assert ended.returncode == 78
    assert ended.stderr.startswith('{"error": "config"')


def test_a_private_key_that_others_can_read_is_said_at_the_start(hospital: Hospital) -> None:
    (hospital.state / LINK / "key.pem").chmod(0o644)
    assert [finding.name for finding in hospital.start()] == ["private key"]
