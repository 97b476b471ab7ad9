"""What goes wrong first on the aggregator's machine, really done: `doctor` and `serve` both say which."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fedmap.errors import StorageError, UnreachableError
from fedmap.process.findings import Finding
from fedmap.process.settings import read_config
from fedmap.process.telemetry import TelemetryServer
from fedmap_aggregator.checkup.doctor import before_serving, examine
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise, pki_paths
from fedmap_aggregator.identity.profile import profile_text, read_profile
from fedmap_aggregator.operator.client import OperatorClient
from tests.aggregator.commands import aggregator, free_port
from tests.bad_input import OTHER_USER, as_other_user, fill, mounted, open_folder
from tests.ran import Ran
from tests.site_agent.intercepting_proxy import InterceptingProxy

YEAR = datetime.timedelta(days=365)


def the_time() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Centre:
    """An aggregator that is set up and does not run, in a folder that other users may enter."""

    def __init__(self, folder: Path, state: str = "state", more: str = "") -> None:
        self.folder = folder
        self.path = folder / "aggregator.toml"
        self.port = free_port()
        self.write(state, more)
        initialise(self.config, "admin", the_time())

    def write(self, state: str = "state", more: str = "") -> None:
        self.path.write_text(
            f'[server]\naddress = "localhost:{self.port}"\nlisten = "127.0.0.1:{self.port}"\n'
            f'state = "{state}"\n[limits]\nmax_answer_mib = 1\n{more}'
        )

    @property
    def config(self) -> AggregatorConfig:
        return read_config(self.path, AggregatorConfig)

    @property
    def state(self) -> Path:
        return self.config.server.state

    def faults(self, now: datetime.datetime | None = None) -> list[Finding]:
        return [check for check in examine(self.path, None, now or the_time()) if check.verdict == "fail"]

    def serve(self) -> Ran:
        """`serve`, which is expected to end by itself."""
        return aggregator(self.folder, "serve")


@pytest.fixture
def centre() -> Iterator[Centre]:
    with open_folder() as folder:
        yield Centre(folder)


def test_a_state_folder_of_another_user_is_named_with_both_numbers(centre: Centre) -> None:
    """As with a volume that root made, in a container that does not run as root."""
    told = f"this program runs as user {OTHER_USER}, and {centre.state} belongs to user 0 with mode 700"
    started = as_other_user(centre.folder, "fedmap_aggregator.cli.main", "serve")
    started.refused(74, told)
    assert f"chown -R {OTHER_USER} {centre.state}" in started.stderr
    doctor = as_other_user(centre.folder, "fedmap_aggregator.cli.main", "doctor", "--json").refused(3)
    (fault,) = [check for check in json.loads(doctor.stdout)["checks"] if check["status"] == "fail"]
    assert told in fault["finding"]


def test_a_configuration_that_the_account_may_not_read_is_no_wrong_usage(centre: Centre) -> None:
    centre.path.chmod(0o600)
    as_other_user(centre.folder, "fedmap_aggregator.cli.main", "serve").refused(
        78, f"runs as user {OTHER_USER}, and aggregator.toml belongs to user 0"
    )


def test_a_private_key_that_others_can_read_is_said_at_the_start(centre: Centre) -> None:
    pki_paths(centre.config).ca_key.chmod(0o644)
    (found,) = before_serving(centre.config, the_time())
    assert found.name == "certificate authority"
    assert "chmod 600" in found.hint


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "empty"])
def test_a_state_volume_that_is_not_mounted_is_no_reason_for_a_new_federation(
    centre: Centre, empty: bool
) -> None:
    state = centre.state
    shutil.rmtree(state)
    if empty:
        state.mkdir(mode=0o700)
    centre.serve().refused(74, "is the volume with its state folder mounted?")
    assert "is the volume with its state folder mounted?" in centre.faults()[0].hint


def test_a_certificate_for_another_host_is_named_before_the_service_starts(centre: Centre) -> None:
    text = centre.path.read_text().replace("localhost", "fedmap.example.org")
    centre.path.write_text(text)
    (found,) = before_serving(centre.config, the_time())
    assert "the sites dial fedmap.example.org: they will not connect" in found.message
    assert "serve" in found.hint
    assert [check.message for check in centre.faults()] == [found.message]


def test_an_operators_proxy_that_intercepts_tls_is_named(centre: Centre, tmp_path: Path) -> None:
    profile = read_profile(pki_paths(centre.config).operator)
    with InterceptingProxy(tmp_path) as proxy:
        changed = profile_text(profile) + f'proxy = "{proxy.url}"\n'
        (tmp_path / "kim.toml").write_text(changed)
        (tmp_path / "kim.toml").chmod(0o600)
        checks = examine(tmp_path / "absent.toml", tmp_path / "kim.toml", the_time())
        with (
            OperatorClient(read_profile(tmp_path / "kim.toml")) as client,
            pytest.raises(UnreachableError, match="not trusted here"),
        ):
            client.sites()
    (found,) = [check for check in checks if check.verdict == "fail"]
    assert "inspects TLS" in found.hint
    assert proxy.read_along == 0


def test_a_clock_that_was_set_back_is_said_at_the_start(centre: Centre) -> None:
    told = {check.name: check for check in before_serving(centre.config, the_time() - YEAR)}
    assert "this machine's clock is behind" in told["clock"].message
    assert "NTP" in told["clock"].hint
    assert "set this machine's clock right" in told["server certificate"].hint


def test_a_full_disk_is_named_by_doctor_and_stops_the_start(centre: Centre) -> None:
    with mounted(centre.folder / "small", mib=2) as disk:
        shutil.copytree(centre.state, disk / "state")
        (disk / "state").chmod(0o700)
        centre.write("small/state")
        fill(disk)
        found = centre.faults()
        assert "the disk is full" in found[0].message
        assert "nothing written before is lost" in found[0].hint
        with pytest.raises(StorageError, match="the disk is full"):
            before_serving(centre.config, the_time())
        ended = centre.serve()
        ended.refused(74, "the disk is full")


def test_a_port_in_use_is_named_by_doctor_and_ends_the_start(centre: Centre) -> None:
    with socket.create_server(("127.0.0.1", centre.port)) as held:
        ended = centre.serve()
        held.close()
    told = f"cannot listen on 127.0.0.1:{centre.port}: another program uses this port"
    ended.refused(69, told)
    assert f"sport = :{centre.port}" in ended.stderr
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", centre.port))  # taken, and not answering
        (found,) = centre.faults()
    assert (found.name, found.message) == ("port", told)


def test_a_metrics_port_in_use_is_named_by_doctor(centre: Centre) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{held.getsockname()[1]}"
        centre.write(more=f'[metrics]\nlisten = "{listen}"\n')
        (found,) = centre.faults()
    assert found.message == f"cannot listen on {listen}: another program uses this port"
    assert "metrics.listen" in found.hint


def test_a_misspelt_and_a_misplaced_key_are_led_to_the_right_one(centre: Centre) -> None:
    text = centre.path.read_text().replace("listen =", "lisen =")
    centre.path.write_text(f"{text}[log]\nreflection = true\n")
    ended = centre.serve()
    assert ended.returncode == 78
    (found,) = centre.faults()
    for told in (
        "server.lisen: unknown key, did you mean `listen`?",
        "log.reflection: unknown key here; there is `reflection` under [server]",
    ):
        assert told in ended.stderr
        assert told in found.message


def test_a_metrics_port_that_answers_as_ours_is_no_fault(centre: Centre) -> None:
    server = TelemetryServer("127.0.0.1:0", CollectorRegistry(), lambda: None)
    server.start()
    try:
        centre.write(more=f'[metrics]\nlisten = "127.0.0.1:{server.port}"\n')
        assert not centre.faults()
    finally:
        server.stop()
