from __future__ import annotations

import datetime
import errno
import os
import shutil
import socket
import threading
from collections.abc import Iterator
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
from fedmap_aggregator.identity.initialise import PkiPaths, initialise, names_host, pki_paths
from fedmap_aggregator.identity.profile import profile_text, read_profile
from fedmap_aggregator.store.layout import restoring_mark

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


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    """A configuration whose aggregator has been initialised and does not run."""
    path = tmp_path / "aggregator.toml"
    path.write_text(
        f'[server]\naddress = "localhost:{free_port()}"\nstate = "state"\n[limits]\nmax_answer_mib = 1\n'
    )
    initialise(read_config(path, AggregatorConfig), "admin", the_time())
    return path


@pytest.fixture
def pki(config_path: Path) -> PkiPaths:
    return pki_paths(read_config(config_path, AggregatorConfig))


def found(config: Path, name: str, now: datetime.datetime | None = None) -> list[Finding]:
    return [check for check in examine(config, None, now or the_time()) if check.name == name]


def failures(config: Path, now: datetime.datetime | None = None) -> list[Finding]:
    return [check for check in examine(config, None, now or the_time()) if check.verdict == "fail"]


def only_failure(config: Path, now: datetime.datetime | None = None) -> Finding:
    checks = failures(config, now)
    assert len(checks) == 1, checks
    assert checks[0].hint
    return checks[0]


def test_a_fresh_aggregator_passes_every_check(config_path: Path) -> None:
    checks = examine(config_path, None, the_time())
    assert {check.verdict for check in checks} == {"ok"}, checks
    names = {check.name for check in checks}
    assert {"config", "state folder", "disk space", "clock", "certificate authority"} <= names
    assert {"server certificate", "release key", "database", "profile", "port"} <= names


def test_a_release_key_that_others_can_read_is_named(config_path: Path, pki: PkiPaths) -> None:
    key = pki.folder.parent / "release" / "key.pem"
    key.chmod(0o644)
    check = only_failure(config_path)
    assert (check.name, str(key) in check.message) == ("release key", True)
    assert "chmod 600" in check.hint


def test_a_port_of_the_downloads_that_is_taken_is_named(config_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, and not answering
        listen = f"127.0.0.1:{held.getsockname()[1]}"
        config_path.write_text(config_path.read_text() + f'[downloads]\nlisten = "{listen}"\n')
        check = only_failure(config_path)
    assert check.name == "downloads"
    assert "another program uses this port" in check.message
    (check,) = found(config_path, "downloads")
    assert check.verdict == "ok"


def test_a_faulty_configuration_is_named_with_all_its_problems(config_path: Path) -> None:
    config_path.write_text('[server]\nadress = "x"\n')
    check = only_failure(config_path)
    assert check.name == "config"
    assert "server.adress" in check.message
    assert "server.state" in check.message


def test_an_aggregator_that_was_never_initialised_is_told_to_init(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[server]\naddress = "localhost:8443"\nstate = "nowhere"\n')
    check = only_failure(tmp_path / "a.toml")
    assert "init" in check.hint


def test_a_state_folder_open_to_others_fails(config_path: Path) -> None:
    (config_path.parent / "state").chmod(0o755)
    check = only_failure(config_path)
    assert (check.name, "chmod 700" in check.hint) == ("state folder", True)


def test_a_state_folder_open_to_a_group_is_a_warning(config_path: Path) -> None:
    (config_path.parent / "state").chmod(0o770)
    assert [check.verdict for check in found(config_path, "state folder")] == ["warn"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_state_folder_that_cannot_be_written_fails(config_path: Path) -> None:
    state = config_path.parent / "state"
    state.chmod(0o500)
    try:
        assert "cannot be written" in only_failure(config_path).message
    finally:
        state.chmod(0o700)


def test_a_full_disk_under_the_state_folder_is_named(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedmap.files.durable.os.write", full)
    (check,) = [check for check in found(config_path, "state folder") if check.verdict == "fail"]
    assert "the disk is full" in check.message


@pytest.mark.parametrize(("free_mib", "status"), [(100, "fail"), (300, "warn"), (5000, "ok")])
def test_disk_space_is_judged_by_the_largest_answers(tmp_path: Path, free_mib: int, status: str) -> None:
    (check,) = doctor_machine.disk_space(tmp_path, 1024, lambda _: free_mib << 20)
    assert check.verdict == status


def test_a_lost_authority_key_is_named_with_what_it_means(config_path: Path, pki: PkiPaths) -> None:
    pki.ca_key.unlink()
    check = only_failure(config_path)
    assert check.name == "certificate authority"
    assert "no site can enrol or renew" in check.message
    assert "backup" in check.hint


def test_a_key_of_another_certificate_is_named(config_path: Path, pki: PkiPaths) -> None:
    pki.server_key.write_bytes(key_pem(new_key()))
    check = only_failure(config_path)
    assert check.name == "server certificate"
    assert "does not belong" in check.message


def test_a_key_file_that_is_no_key_is_named(config_path: Path, pki: PkiPaths) -> None:
    pki.server_key.write_bytes(b"hello")
    check = only_failure(config_path)
    assert check.name == "server certificate"
    assert "not a private key" in check.message


def test_a_key_that_others_can_read_is_named(config_path: Path, pki: PkiPaths) -> None:
    pki.ca_key.chmod(0o644)
    check = only_failure(config_path)
    assert check.name == "certificate authority"
    assert "chmod 600" in check.hint


def test_certificates_that_have_ended_are_named_one_by_one(config_path: Path) -> None:
    checks = failures(config_path, the_time() + 400 * DAY)
    ended = {check.name for check in checks if "ended on" in check.message}
    assert ended == {"server certificate", "profile"}


def test_a_certificate_that_ends_soon_is_a_warning(config_path: Path) -> None:
    statuses = {check.verdict for check in found(config_path, "server certificate", the_time() + 380 * DAY)}
    assert statuses == {"ok", "warn"}


def test_certificates_from_the_future_point_at_the_clock(config_path: Path) -> None:
    checks = failures(config_path, the_time() - DAY)
    assert "clock" in {check.name for check in checks}
    assert any("not valid before" in check.message and "clock" in check.hint for check in checks)


def test_a_few_minutes_of_skew_are_no_fault(config_path: Path) -> None:
    assert not failures(config_path, the_time() - datetime.timedelta(minutes=4))


def test_a_certificate_for_another_host_is_named(config_path: Path) -> None:
    config_path.write_text(config_path.read_text().replace("localhost", "fedmap.example.org"))
    check = only_failure(config_path)
    assert "fedmap.example.org" in check.message
    assert "they will not connect" in check.message


def test_a_server_certificate_of_a_foreign_authority_is_named(config_path: Path, pki: PkiPaths) -> None:
    foreign, _ = CertificateAuthority.create("foreign", 10, the_time())
    key = new_key()
    certificate = foreign.issue(key.public_key(), Identity("aggregator"), 40, the_time(), ("localhost",))
    pki.server_certificate.write_bytes(certificate)
    pki.server_key.write_bytes(key_pem(key))
    assert any("its chain does not hold" in check.message for check in failures(config_path))


def test_a_missing_joining_file_is_named(config_path: Path, pki: PkiPaths) -> None:
    pki.joining.unlink()
    assert only_failure(config_path).name == "joining file"


def test_a_profile_that_others_can_read_is_named(config_path: Path, pki: PkiPaths) -> None:
    pki.operator.chmod(0o640)
    check = only_failure(config_path)
    assert (check.name, "chmod 600" in check.hint) == ("profile", True)


def test_a_profile_without_its_own_key_is_named(config_path: Path, pki: PkiPaths) -> None:
    profile = replace(read_profile(pki.operator), key=key_pem(new_key()).decode())
    pki.operator.write_text(profile_text(profile))
    assert "does not belong" in only_failure(config_path).message


def test_a_site_certificate_is_no_operator_profile(config_path: Path, pki: PkiPaths) -> None:
    authority = CertificateAuthority.load(pki.ca.read_bytes(), pki.ca_key.read_bytes())
    key = new_key()
    certificate = authority.issue(key.public_key(), Identity("site", "one"), 90, the_time())
    profile = replace(read_profile(pki.operator), certificate=certificate.decode(), key=key_pem(key).decode())
    pki.operator.write_text(profile_text(profile))
    assert "not an operator's" in only_failure(config_path).message


def test_a_stranger_on_the_port_is_not_taken_for_the_aggregator(config_path: Path) -> None:
    port = read_config(config_path, AggregatorConfig).server.address.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", int(port))) as stranger, hanging_up(stranger):
        check = only_failure(config_path)
    assert check.name == "port"


def test_a_listen_address_of_another_machine_is_named(config_path: Path) -> None:
    text = config_path.read_text().replace("[limits]", 'listen = "192.0.2.1:8443"\n[limits]')
    config_path.write_text(text)
    checks = [check for check in found(config_path, "port") if check.verdict == "fail"]
    assert "server.listen" in checks[0].hint


def test_a_database_that_is_none_is_named(config_path: Path) -> None:
    config_path.write_text(config_path.read_text() + '[database]\nurl = "mysql://host/base"\n')
    check = only_failure(config_path)
    assert check.name == "database"


def test_a_damaged_database_is_named(config_path: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is not a database, but long enough to look at" * 100)
    config_path.write_text(config_path.read_text() + f'[database]\nurl = "sqlite:///{tmp_path}/broken.db"\n')
    check = only_failure(config_path)
    assert (check.name, "damaged" in check.message) == ("database", True)


def test_a_profile_alone_examines_the_way_to_an_aggregator_elsewhere(
    config_path: Path, pki: PkiPaths, tmp_path: Path
) -> None:
    profile = tmp_path / "kim.toml"
    shutil.copy(pki.operator, profile)
    checks = examine(tmp_path / "absent.toml", profile, the_time())
    by_name = {check.name: check for check in checks}
    assert by_name["profile"].verdict == "ok"
    assert by_name["network"].verdict == "fail"
    assert "does not answer" in by_name["network"].message
    assert config_path.is_file()


def test_an_unknown_name_is_told_apart_from_a_closed_port(pki: PkiPaths, tmp_path: Path) -> None:
    profile = replace(read_profile(pki.operator), address="nobody.invalid:8443")
    (tmp_path / "kim.toml").write_text(profile_text(profile))
    (tmp_path / "kim.toml").chmod(0o600)
    checks = examine(tmp_path / "absent.toml", tmp_path / "kim.toml", the_time())
    assert [check.name for check in checks if check.verdict == "fail"] == ["name"]


def test_the_json_report_carries_the_worst_status(config_path: Path, pki: PkiPaths) -> None:
    pki.joining.unlink()
    report = report_json(examine(config_path, None, the_time()))
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


def test_a_restore_that_was_interrupted_is_named_before_anything_that_follows_from_it(
    config_path: Path,
) -> None:
    config = read_config(config_path, AggregatorConfig)
    restoring_mark(config.server.state).touch()
    pki_paths(config).server_key.unlink()  # half a state folder
    found = examine(config_path, None, the_time())
    assert [(check.name, check.verdict) for check in found if check.verdict != "ok"] == [("restore", "fail")]
    assert "was interrupted" in found[-1].message
    assert "fedmap-aggregator restore" in found[-1].hint
