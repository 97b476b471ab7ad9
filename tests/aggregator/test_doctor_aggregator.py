from __future__ import annotations

import datetime
import errno
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.process.findings import Finding
from fedmap.process.settings import read_config
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap_aggregator.checkup import machine as doctor_machine
from fedmap_aggregator.checkup.doctor import examine, report_json
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise, names_host, pki_paths
from fedmap_aggregator.identity.profile import profile_text, read_profile
from fedmap_aggregator.store.layout import restoring_mark

KEY = key_pem(new_key())
DAY = datetime.timedelta(days=1)


def the_time() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@contextmanager
def hanging_up(server: socket.socket) -> Iterator[None]:
    """Accepts every connection and ends it at once."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                server.accept()[0].close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class Home:
    """An aggregator that has been initialised and does not run, but for what a test does to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.state = folder, folder / "aggregator.toml", folder / "state"
        self.write("")
        initialise(self.config, "admin", the_time())
        self.pki = pki_paths(self.config)

    @property
    def config(self) -> AggregatorConfig:
        return read_config(self.path, AggregatorConfig)

    def write(self, more: str, host: str = "localhost") -> None:
        self.path.write_text(
            f'[server]\naddress = "{host}:{free_port()}"\nstate = "state"\n'
            f"{more}\n[limits]\nmax_answer_mib = 1\n"
        )

    def profile(self, **changes: str) -> None:
        self.pki.operator.write_text(profile_text(replace(read_profile(self.pki.operator), **changes)))

    def found(self, name: str, now: datetime.datetime | None = None) -> list[Finding]:
        return [one for one in examine(self.path, None, now or the_time()) if one.name == name]

    def failures(self, now: datetime.datetime | None = None) -> list[Finding]:
        return [one for one in examine(self.path, None, now or the_time()) if one.verdict == "fail"]

    def failure(self) -> Finding:
        (found,) = self.failures()
        assert found.hint
        return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def damage_database(home: Home) -> None:
    (home.folder / "broken.db").write_bytes(b"this is not a database, but long enough to look at" * 100)
    home.write(f'[database]\nurl = "sqlite:///{home.folder}/broken.db"')


def certificate_of_a_site(home: Home) -> None:
    authority = CertificateAuthority.load(home.pki.ca.read_bytes(), home.pki.ca_key.read_bytes())
    key = new_key()
    certificate = authority.issue(key.public_key(), Identity("site", "one"), 90, the_time())
    home.profile(certificate=certificate.decode(), key=key_pem(key).decode())


def test_a_fresh_aggregator_passes_every_check(home: Home) -> None:
    found = examine(home.path, None, the_time())
    assert {one.verdict for one in found} == {"ok"}, found
    names = {one.name for one in found}
    assert {"config", "state folder", "disk space", "clock", "certificate authority"} <= names
    assert {"server certificate", "release key", "database", "profile", "port"} <= names


@pytest.mark.parametrize(
    ("damage", "name", "told"),
    [
        (lambda home: home.path.write_text("[server]\nadress = 1"), "config", "server.adress server.state"),
        (lambda home: shutil.rmtree(home.state), "state folder", "missing init"),
        (lambda home: home.state.chmod(0o755), "state folder", "chmod 700"),
        (lambda home: (home.state / "release/key.pem").chmod(0o644), "release key", "release/key.pem 600"),
        (lambda home: home.pki.ca_key.unlink(), "certificate authority", "site enrol renew backup"),
        (lambda home: home.pki.ca_key.chmod(0o644), "certificate authority", "chmod 600"),
        (lambda home: home.pki.server_key.write_bytes(KEY), "server certificate", "not belong"),
        (lambda home: home.pki.server_key.write_bytes(b"hello"), "server certificate", "not private key"),
        (lambda home: home.write("", "some.org"), "server certificate", "some.org they will not connect"),
        (lambda home: home.pki.joining.unlink(), "joining file", "missing"),
        (lambda home: home.pki.operator.chmod(0o640), "profile", "chmod 600"),
        (lambda home: home.profile(key=KEY.decode()), "profile", "not belong"),
        (certificate_of_a_site, "profile", "not an operator's"),
        (lambda home: home.write('[database]\nurl = "mysql://host/base"'), "database", ""),
        (damage_database, "database", "damaged"),
        (lambda home: home.write('listen = "192.0.2.1:8443"'), "port", "server.listen"),
    ],
)
def test_one_thing_that_is_wrong_is_the_one_failure(
    home: Home, damage: Callable[[Home], object], name: str, told: str
) -> None:
    damage(home)
    found = home.failure()
    assert found.name == name
    assert [word for word in told.split() if word not in f"{found.message} {found.hint}"] == []


def test_a_port_of_the_downloads_that_is_taken_is_named(home: Home) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, and not answering
        home.write(f'[downloads]\nlisten = "127.0.0.1:{held.getsockname()[1]}"')
        found = home.failure()
    assert found.name == "downloads"
    assert "another program uses this port" in found.message
    (found,) = home.found("downloads")
    assert found.verdict == "ok"


def test_a_state_folder_open_to_a_group_is_a_warning(home: Home) -> None:
    home.state.chmod(0o770)
    assert [one.verdict for one in home.found("state folder")] == ["warn"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_state_folder_that_cannot_be_written_fails(home: Home) -> None:
    home.state.chmod(0o500)
    try:
        assert "cannot be written" in home.failure().message
    finally:
        home.state.chmod(0o700)


def test_a_full_disk_under_the_state_folder_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedmap.files.durable.os.write", full)
    (found,) = [one for one in home.found("state folder") if one.verdict == "fail"]
    assert "the disk is full" in found.message


@pytest.mark.parametrize(("free_mib", "verdict"), [(100, "fail"), (300, "warn"), (5000, "ok")])
def test_disk_space_is_judged_by_the_largest_answers(tmp_path: Path, free_mib: int, verdict: str) -> None:
    (found,) = doctor_machine.disk_space(tmp_path, 1024, lambda _: free_mib << 20)
    assert found.verdict == verdict


def test_certificates_that_have_ended_are_named_one_by_one_and_one_that_ends_soon_is_a_warning(
    home: Home,
) -> None:
    ended = {one.name for one in home.failures(the_time() + 400 * DAY) if "ended on" in one.message}
    assert ended == {"server certificate", "profile"}
    soon = home.found("server certificate", the_time() + 380 * DAY)
    assert {one.verdict for one in soon} == {"ok", "warn"}


def test_certificates_from_the_future_point_at_the_clock_and_a_few_minutes_are_no_fault(home: Home) -> None:
    found = home.failures(the_time() - DAY)
    assert "clock" in {one.name for one in found}
    assert any("not valid before" in one.message and "clock" in one.hint for one in found)
    assert not home.failures(the_time() - datetime.timedelta(minutes=4))


def test_a_server_certificate_of_a_foreign_authority_is_named(home: Home) -> None:
    foreign, _ = CertificateAuthority.create("foreign", 10, the_time())
    key = new_key()
    certificate = foreign.issue(key.public_key(), Identity("aggregator"), 40, the_time(), ("localhost",))
    home.pki.server_certificate.write_bytes(certificate)
    home.pki.server_key.write_bytes(key_pem(key))
    assert any("its chain does not hold" in one.message for one in home.failures())


def test_a_stranger_on_the_port_is_not_taken_for_the_aggregator(home: Home) -> None:
    port = home.config.server.address.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", int(port))) as stranger, hanging_up(stranger):
        assert home.failure().name == "port"


@pytest.mark.parametrize(
    ("address", "failed", "message"),
    [(None, "network", "does not answer"), ("nobody.invalid:8443", "name", "cannot be resolved")],
)
def test_a_profile_alone_examines_the_way_to_an_aggregator_elsewhere(
    home: Home, tmp_path: Path, address: str | None, failed: str, message: str
) -> None:
    if address:
        home.profile(address=address)
    found = {one.name: one for one in examine(tmp_path / "absent.toml", home.pki.operator, the_time())}
    assert found["profile"].verdict == "ok"
    assert [name for name, one in found.items() if one.verdict == "fail"] == [failed]
    assert message in found[failed].message


def test_the_json_report_carries_the_worst_status(home: Home) -> None:
    home.pki.joining.unlink()
    report = report_json(examine(home.path, None, the_time()))
    assert isinstance(report, dict)
    assert report["status"] == "fail"


@pytest.mark.parametrize(
    ("names", "host", "good"),
    [
        (("fedmap.org",), "FedMAP.org", True),
        (("*.fedmap.org",), "a.fedmap.org", True),
        (("*.fedmap.org",), "a.b.fedmap.org", False),
        (("*.fedmap.org",), "fedmap.org", False),
        (("10.0.0.1",), "10.0.0.1", True),
        (("10.0.0.1",), "10.0.0.2", False),
        (("::1",), "0:0:0:0:0:0:0:1", True),
        ((), "fedmap.org", False),
    ],
)
def test_a_host_is_covered_as_tls_compares_names(names: tuple[str, ...], host: str, good: bool) -> None:
    assert names_host(names, host) is good


def test_a_restore_that_was_interrupted_is_named_before_anything_that_follows_from_it(home: Home) -> None:
    restoring_mark(home.state).touch()
    home.pki.server_key.unlink()  # half a state folder
    (found,) = home.failures()
    assert found.name == "restore"
    assert "was interrupted" in found.message
    assert "fedmap-aggregator restore" in found.hint
