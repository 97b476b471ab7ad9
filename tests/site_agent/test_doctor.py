"""`doctor` names the exact fault, each with a next step. Every test makes one thing wrong."""

from __future__ import annotations

import datetime
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedmap.errors import NotAllowedError
from fedmap.process.findings import Finding
from fedmap.transport.client import Route
from fedmap_site.checkup import site as site_checks
from fedmap_site.checkup.doctor import examine
from fedmap_site.checkup.network import check_way
from fedmap_site.identity.files import LINK, write_identity
from tests.site_agent.federation_double import AggregatorDouble, Authority, now


class Site:
    """A site that is in order, but for what a test does to it."""

    def __init__(self, folder: Path, aggregator: AggregatorDouble) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        (folder / "policy.toml").write_text('egress = "review"\n')
        (folder / "patients.csv").write_text("planted-identifier,1\n")
        self.config = folder / "site.toml"
        self.write(aggregator.address)
        write_identity(self.state, aggregator.authority.site("a", 10))

    def write(self, address: str, more: str = "") -> None:
        self.config.write_text(
            f'[site]\nname = "a"\nstate = "state"\n[data]\nfile = "patients.csv"\n'
            f'[aggregator]\naddress = "{address}"\n{more}'
        )

    def examine(self, moment: datetime.datetime | None = None) -> list[Finding]:
        return examine(self.config, moment or now(), "1.0")

    def fault(self, moment: datetime.datetime | None = None) -> Finding:
        (found,) = [f for f in self.examine(moment) if f.verdict == "fail"]
        assert found.hint
        return found


Damage = Callable[[Site, AggregatorDouble], object]


@pytest.fixture
def aggregator() -> Iterator[AggregatorDouble]:
    with AggregatorDouble(hosts=("localhost",)) as double:
        yield double


@pytest.fixture
def site(tmp_path: Path, aggregator: AggregatorDouble) -> Site:
    return Site(tmp_path, aggregator)


def test_a_site_in_order_has_no_fault_and_its_data_are_not_quoted(site: Site) -> None:
    found = site.examine()
    assert [f for f in found if f.verdict != "ok"] == []
    local = ["configuration", "policy", "state folder", "disk", "data", "certificate"]
    assert [f.name for f in found] == [*local, "name", "port", "tls", "aggregator", "clock"]
    assert "planted-identifier" not in repr(found)


def test_a_faulty_configuration_is_the_only_finding(site: Site) -> None:
    site.config.write_text('[site]\nnam = "a"\n')
    (found,) = site.examine()
    assert (found.name, found.verdict) == ("configuration", "fail")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read and write everything")
def test_files_that_may_not_be_used_are_named(site: Site) -> None:
    (site.folder / "patients.csv").chmod(0)
    assert "permission denied" in site.fault().message
    (site.folder / "patients.csv").chmod(0o600)
    site.state.chmod(0o500)
    assert "permission denied" in site.fault().message
    site.state.chmod(0o700)


def test_a_nearly_full_disk_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_checks, "LOW_BYTES", 1 << 60)
    assert site.fault().name == "disk"


def certificate(days: int, made_days_ago: int, name: str = "a") -> Damage:
    made = now() - datetime.timedelta(days=made_days_ago)
    return lambda site, double: write_identity(site.state, double.authority.site(name, days, made))


def clock(offset_ms: int) -> Damage:
    return lambda _, double: setattr(double, "clock_offset_ms", offset_ms)


def in_identity(name: str, data: Callable[[], bytes]) -> Damage:
    return lambda site, _: (site.state / LINK / name).write_bytes(data())


REVOKED = NotAllowedError("the certificate was revoked", hint="ask the operator")


@pytest.mark.parametrize(
    ("damage", "name", "told"),
    [
        (lambda site, _: (site.folder / "policy.toml").unlink(), "policy", ""),
        (lambda site, _: (site.folder / "patients.csv").unlink(), "data", "patients.csv: no such file"),
        (lambda site, _: (site.state / LINK).unlink(), "identity", "enrol"),
        (lambda site, _: (site.state / LINK / "key.pem").chmod(0o644), "private key", ""),
        (certificate(90, 0, "b"), "certificate", "is for site b"),
        (clock(40 * 24 * 3600 * 1000), "clock", ""),
        (lambda _, double: double.refuse.update(Hello=REVOKED), "aggregator", "revoked ask the operator"),
        (lambda site, _: site.write("no-such-host.invalid:8443"), "name", ""),
        (lambda site, _: site.write("localhost:1"), "port", "refuses connections to port 1"),
    ],
)
def test_one_thing_that_is_wrong_is_the_one_failure(
    site: Site, aggregator: AggregatorDouble, damage: Damage, name: str, told: str
) -> None:
    damage(site, aggregator)
    found = site.fault()
    assert found.name == name
    assert told in f"{found.message} {found.hint}"


@pytest.mark.parametrize(
    ("damage", "place", "message"),
    [
        (in_identity("key.pem", lambda: Authority().site().key), 0, "does not belong"),
        (certificate(1, 3), 0, "ended on"),
        # told apart from a broken network
        (in_identity("certificate.pem", lambda: Authority().site().certificate), -1, "TLS works"),
    ],
)
def test_a_fault_that_others_follow_from_is_named(
    site: Site, aggregator: AggregatorDouble, damage: Damage, place: int, message: str
) -> None:
    damage(site, aggregator)
    assert message in [f for f in site.examine() if f.verdict == "fail"][place].message


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda site, _: site.state.chmod(0o755), "chmod 700"),
        (certificate(10, 9), "should be renewed"),
        (clock(120_000), "s behind"),
    ],
)
def test_what_does_not_stop_the_site_is_a_warning(
    site: Site, aggregator: AggregatorDouble, damage: Damage, told: str
) -> None:
    damage(site, aggregator)
    (found,) = [f for f in site.examine() if f.verdict == "warn"]
    assert told in f"{found.message} {found.hint}"


def test_tls_inspection_is_named_with_the_issuer(site: Site) -> None:
    with AggregatorDouble() as inspecting:
        site.write(inspecting.address)
        found = site.fault()
    assert "not from our authority" in found.message
    assert "CN=Test federation" in found.message
    assert "inspects TLS" in found.hint


def test_a_certificate_that_does_not_cover_the_host_is_named(site: Site) -> None:
    with AggregatorDouble(Authority(), hosts=("aggregator.example.org",)) as double:
        write_identity(site.state, double.authority.site())
        site.write(double.address)
        found = site.fault()
    assert "does not cover localhost" in found.message
    assert "aggregator.example.org" in found.message


def test_something_that_does_not_speak_tls_is_named(site: Site) -> None:
    with _Listener(b"hello, this is not TLS\r\n") as port:
        site.write(f"localhost:{port}")
        assert "TLS handshake" in site.fault().message


@pytest.mark.parametrize(
    ("status", "login", "told"),
    [
        ("403 Forbidden", "", "403"),
        ("407 Proxy Authentication Required", "", "proxy_file"),
        ("401 Unauthorized", "hospital:wrong@", "does not take the login"),
        ("407 Proxy Authentication Required", "hospital:wrong@", "does not take the login"),
    ],
)
def test_what_a_proxy_refuses_is_told_apart(
    site: Site, aggregator: AggregatorDouble, tmp_path: Path, status: str, login: str, told: str
) -> None:
    with _Listener(f"HTTP/1.1 {status}\r\n\r\n".encode()) as port:
        secret = tmp_path / "proxy"
        secret.write_text(f"http://{login}localhost:{port}\n")
        secret.chmod(0o600)
        setting = f'proxy_file = "{secret}"\n' if login else f'proxy = "http://localhost:{port}"\n'
        site.write(aggregator.address, setting)
        found = site.fault()
    assert found.name == "proxy"
    assert told in f"{found.message} {found.hint}"
    assert "wrong" not in found.message + found.hint


def test_a_host_that_never_answers_is_told_apart_from_one_that_refuses(
    aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    found = check_way(Route(aggregator.address), aggregator.authority.ca.certificate_pem)[-1]
    assert "does not answer" in found.message
    assert "firewall" in found.hint


class _Listener:
    """Answers every connection with the same bytes and hangs up."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                try:
                    peer.recv(4096)
                    peer.sendall(self._reply)
                except OSError:
                    continue
