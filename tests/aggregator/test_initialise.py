"""`init` makes one identity, whole and private, and never a second one in the same place."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedmap.errors import ConfigError, ConflictError, RejectedError, StateError, StorageError
from fedmap.files.durable import write_durably
from fedmap.trust.pki import (
    CertificateAuthority,
    Identity,
    certificate_facts,
    fits,
    key_pem,
    new_key,
    verify_chain,
)
from fedmap_aggregator.identity.initialise import add_operator, initialise, load_authority, pki_paths
from fedmap_aggregator.identity.profile import read_profile
from fedmap_aggregator.identity.server import ServerIdentity
from tests.aggregator.running import config_in

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_the_identity_is_whole_and_its_secrets_are_private(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    made = initialise(config, "kim", NOW)
    paths = pki_paths(config)
    assert stat.S_IMODE(made.state.stat().st_mode) == 0o700
    for secret in (paths.ca_key, paths.server_key, paths.operator):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    facts = certificate_facts(paths.server_certificate.read_bytes())
    assert {"localhost", "127.0.0.1"} <= set(facts.dns_names)
    assert facts.identity == Identity("aggregator")
    assert fits(paths.server_key.read_bytes(), paths.server_certificate.read_bytes())
    assert read_profile(paths.operator).name == "kim"
    assert paths.joining.read_bytes().count(b"BEGIN CERTIFICATE") == 2
    assert made.ca_fingerprint == certificate_facts(paths.ca.read_bytes()).fingerprint


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    initialise(config, "kim", NOW)
    before = {path: path.read_bytes() for path in pki_paths(config).folder.iterdir()}
    with pytest.raises(ConflictError, match="already"):
        initialise(config, "kim", NOW)
    assert {path: path.read_bytes() for path in pki_paths(config).folder.iterdir()} == before


def test_an_interrupted_init_can_be_done_again(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    half = config.server.state / "pki.partial"
    half.mkdir(parents=True)
    (half / "ca.key").write_text("half")
    initialise(config, "kim", NOW)
    assert not half.exists()


def test_a_server_cannot_start_before_init(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no identity"):
        load_authority(config_in(tmp_path))


def test_a_further_operator_gets_a_key_of_their_own(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    initialise(config, "kim", NOW)
    profile = add_operator(config, "alex", NOW)
    ca = pki_paths(config).ca.read_bytes()
    assert verify_chain(profile.certificate.encode(), ca, NOW) == Identity("operator", "alex")
    assert profile.key != read_profile(pki_paths(config).operator).key
    with pytest.raises(RejectedError):
        add_operator(config, "Not A Name", NOW)


def _external(folder: Path, hosts: tuple[str, ...] = ("localhost",), days: int = 100) -> str:
    authority, _ = CertificateAuthority.create("the trust", 3650, NOW)
    key = new_key()
    certificate = authority.issue(key.public_key(), Identity("aggregator"), days, NOW, hosts)
    for name, data in (
        ("s.pem", certificate),
        ("s.key", key_pem(key)),
        ("ca.pem", authority.certificate_pem),
    ):
        (folder / name).write_bytes(data)
    return '[pki]\nserver_certificate = "s.pem"\nserver_key = "s.key"\nclient_ca = "ca.pem"\n'


def test_external_certificates_are_checked_and_left_alone(tmp_path: Path) -> None:
    config = config_in(tmp_path, _external(tmp_path))
    made = initialise(config, "kim", NOW)
    assert (made.joining, made.operator_profile) == (None, None)
    assert not pki_paths(config).folder.exists()
    with pytest.raises(StateError, match="external PKI"):
        add_operator(config, "alex", NOW)


def test_every_fault_of_external_certificates_is_named_at_once(tmp_path: Path) -> None:
    extra = _external(tmp_path, hosts=("elsewhere.org",), days=1)
    (tmp_path / "s.key").write_bytes(key_pem(new_key()))
    with pytest.raises(ConfigError) as caught:
        initialise(config_in(tmp_path, extra), "kim", NOW + timedelta(days=2))
    told = "\n".join(caught.value.problems)
    assert "does not belong" in told
    assert "ended on" in told
    assert "elsewhere.org" in told


def test_one_external_file_without_the_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="go together"):
        config_in(tmp_path, '[pki]\nclient_ca = "ca.pem"\n')


def test_the_servers_certificate_is_renewed_before_it_ends_and_taken_up_without_a_restart(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    initialise(config, "kim", NOW)
    identity = ServerIdentity(config, load_authority(config), NOW)
    before = identity.pair
    assert not identity.renew(NOW + timedelta(days=300))
    assert identity.refresh() is None
    assert identity.renew(NOW + timedelta(days=380))
    after = identity.refresh()
    assert after is not None
    assert after.certificate_pem != before.certificate_pem
    assert identity.ends > NOW + timedelta(days=700)


def test_a_half_replaced_pair_of_files_is_not_taken_up(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    initialise(config, "kim", NOW)
    identity = ServerIdentity(config, load_authority(config), NOW)
    before = identity.pair
    write_durably(pki_paths(config).server_key, key_pem(new_key()))
    assert identity.refresh() is None
    assert identity.pair == before
