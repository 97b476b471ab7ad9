"""The monitoring endpoint over real HTTP."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from fedmap.errors import ConfigError, PortError
from fedmap.process.addresses import split_listen
from fedmap.process.telemetry import TelemetryServer


class Readiness:
    def __init__(self) -> None:
        self.missing: str | None = None

    def __call__(self) -> str | None:
        if self.missing == "crash":
            raise ValueError("NHS-943-476-5919")
        return self.missing


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def server(readiness: Readiness) -> Iterator[TelemetryServer]:
    registry = CollectorRegistry()
    Counter("fedmap_rounds", "Closed rounds.", registry=registry).inc(3)
    running = TelemetryServer("127.0.0.1:0", registry, readiness)
    running.start()
    yield running
    running.stop()


def get(server: TelemetryServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_metrics_are_served_for_prometheus(server: TelemetryServer) -> None:
    status, body = get(server, "/metrics")
    assert status == 200
    assert "fedmap_rounds_total 3.0" in body


def test_a_process_that_is_alive_but_not_ready_says_what_is_missing(
    server: TelemetryServer, readiness: Readiness
) -> None:
    assert get(server, "/readyz") == (200, "ready\n")
    readiness.missing = "the database is locked"
    assert get(server, "/readyz") == (503, "the database is locked\n")
    assert get(server, "/healthz") == (200, "ok\n")


def test_other_paths_and_methods_are_refused(server: TelemetryServer) -> None:
    assert get(server, "/")[0] == 404
    assert get(server, "/metrics/../etc/passwd")[0] == 404
    assert get(server, "/metrics", "POST")[0] == 405


def test_a_failing_check_is_a_500_that_quotes_nothing(
    server: TelemetryServer, readiness: Readiness, capsys: pytest.CaptureFixture[str]
) -> None:
    readiness.missing = "crash"
    status, body = get(server, "/readyz")
    said = capsys.readouterr()
    assert status == 500
    assert "943" not in body + said.out + said.err


def test_a_silent_peer_does_not_hold_up_others_or_the_end(server: TelemetryServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "/healthz")[0] == 200
        server.stop()


def test_a_taken_port_is_a_port_error_with_a_hint() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = TelemetryServer(f"127.0.0.1:{taken.getsockname()[1]}", CollectorRegistry(), lambda: None)
        with pytest.raises(PortError, match="another program uses this port") as caught:
            server.start()
    assert "[metrics]" in caught.value.hint


def test_stopping_twice_or_before_the_start_changes_nothing(server: TelemetryServer) -> None:
    server.stop()
    server.stop()
    TelemetryServer("127.0.0.1:0", CollectorRegistry(), lambda: None).stop()


@pytest.mark.parametrize("listen", ["", "9464", "host", "host:", "host:x", "host:70000", "host:-1", "host:²"])
def test_an_address_that_is_no_host_and_port_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="not host:port"):
        split_listen(listen)


def test_addresses_are_split() -> None:
    assert split_listen("127.0.0.1:9464") == ("127.0.0.1", 9464)
    assert split_listen("[::1]:1") == ("::1", 1)
    assert split_listen(":0") == ("", 0)
