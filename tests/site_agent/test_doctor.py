"""`doctor` names the exact fault, each with a next step. Every test makes one thing wrong."""

from __future__ import annotations

import datetime
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.errors import NotAllowedError
from fedmap.process.findings import Finding
from fedmap_site.checkup import site as site_checks
from fedmap_site.checkup.doctor import examine
from fedmap_site.checkup.network import check_way
from fedmap_site.identity.files import LINK, write_identity
from fedmap_site.link.connection import Route
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


def test_a_missing_policy_is_named(site: Site) -> None:
    (site.folder / "policy.toml").unlink()
    assert site.fault().name == "policy"


def test_a_missing_data_file_is_named(site: Site) -> None:
    (site.folder / "patients.csv").unlink()
    assert "patients.csv: no such file" in site.fault().message


@pytest.mark.skipif(os.getuid() == 0, reason="root may read and write everything")
def test_an_unreadable_data_file_is_named(site: Site) -> None:
    (site.folder / "patients.csv").chmod(0)
    assert "permission denied" in site.fault().message


@pytest.mark.skipif(os.getuid() == 0, reason="root may read and write everything")
def test_a_read_only_state_folder_is_named(site: Site) -> None:
    site.state.chmod(0o500)
    assert "permission denied" in site.fault().message
    site.state.chmod(0o700)


def test_a_state_folder_open_to_others_is_a_warning(site: Site) -> None:
    site.state.chmod(0o755)
    (found,) = [f for f in site.examine() if f.verdict == "warn"]
    assert "chmod 700" in found.hint


def test_a_nearly_full_disk_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_checks, "LOW_BYTES", 1 << 60)
    assert site.fault().name == "disk"


def test_a_site_that_has_not_enrolled_is_told_so(site: Site) -> None:
    (site.state / LINK).unlink()
    assert "enrol" in site.fault().hint


def test_a_private_key_that_others_can_read_is_named(site: Site) -> None:
    (site.state / LINK / "key.pem").chmod(0o644)
    assert site.fault().name == "private key"


def test_a_key_that_does_not_fit_the_certificate_is_named(site: Site) -> None:
    (site.state / LINK / "key.pem").write_bytes(Authority().site().key)
    found = [f for f in site.examine() if f.verdict == "fail"]
    assert "does not belong" in found[0].message


def test_a_certificate_for_another_name_is_named(site: Site, aggregator: AggregatorDouble) -> None:
    write_identity(site.state, aggregator.authority.site("b"))
    assert "is for site b" in site.fault().message


def test_an_ended_certificate_is_named(site: Site, aggregator: AggregatorDouble) -> None:
    old = aggregator.authority.site("a", 1, now() - datetime.timedelta(days=3))
    write_identity(site.state, old)
    found = [f for f in site.examine() if f.verdict == "fail"]
    assert "ended on" in found[0].message


def test_a_certificate_near_its_end_is_a_warning(site: Site, aggregator: AggregatorDouble) -> None:
    old = aggregator.authority.site("a", 10, now() - datetime.timedelta(days=9))
    write_identity(site.state, old)
    (found,) = [f for f in site.examine() if f.verdict == "warn"]
    assert "should be renewed" in found.message


def test_a_clock_two_minutes_off_is_a_warning(site: Site, aggregator: AggregatorDouble) -> None:
    aggregator.clock_offset_ms = 120_000
    (found,) = [f for f in site.examine() if f.verdict == "warn"]
    assert "120 s behind" in found.message or "119 s behind" in found.message


def test_a_clock_outside_the_certificates_dates_is_a_fault(site: Site, aggregator: AggregatorDouble) -> None:
    aggregator.clock_offset_ms = 40 * 24 * 3600 * 1000
    assert site.fault().name == "clock"


def test_a_revoked_site_is_told_that_it_is_revoked(site: Site, aggregator: AggregatorDouble) -> None:
    aggregator.refuse["Hello"] = NotAllowedError("the certificate was revoked", hint="ask the operator")
    found = site.fault()
    assert "revoked" in found.message
    assert found.hint == "ask the operator"


def test_a_foreign_client_certificate_is_told_apart_from_a_broken_network(site: Site) -> None:
    stranger = Authority()
    (site.state / LINK / "certificate.pem").write_bytes(stranger.site().certificate)
    found = [f for f in site.examine() if f.verdict == "fail"]
    assert "TLS works" in found[-1].message


def test_a_name_that_does_not_resolve_is_named(site: Site) -> None:
    site.write("no-such-host.invalid:8443")
    assert site.fault().name == "name"


def test_a_port_that_refuses_is_named(site: Site) -> None:
    site.write("localhost:1")
    assert "refuses connections to port 1" in site.fault().message


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


def test_a_proxy_that_refuses_is_named_with_its_status(site: Site, aggregator: AggregatorDouble) -> None:
    with _Listener(b"HTTP/1.1 403 Forbidden\r\n\r\n") as port:
        site.write(aggregator.address, f'proxy = "http://localhost:{port}"\n')
        found = site.fault()
    assert found.name == "proxy"
    assert "403" in found.message


def test_a_proxy_that_wants_a_login_is_told_apart(site: Site, aggregator: AggregatorDouble) -> None:
    with _Listener(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as port:
        site.write(aggregator.address, f'proxy = "http://localhost:{port}"\n')
        assert "proxy_file" in site.fault().hint


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"407 Proxy Authentication Required"])
def test_a_login_that_the_proxy_does_not_take_is_told_apart_from_none(
    site: Site, aggregator: AggregatorDouble, tmp_path: Path, status: bytes
) -> None:
    with _Listener(b"HTTP/1.1 " + status + b"\r\n\r\n") as port:
        secret = tmp_path / "proxy"
        secret.write_text(f"http://hospital:wrong@localhost:{port}\n")
        secret.chmod(0o600)
        site.write(aggregator.address, f'proxy_file = "{secret}"\n')
        found = site.fault()
    assert "does not take the login" in found.hint
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
