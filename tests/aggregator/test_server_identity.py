from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from fedmap.process.settings import parse_config
from fedmap.trust.pki import certificate_facts, fits, key_pem, new_key, verify_chain
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import PkiPaths, initialise, load_authority, pki_paths
from fedmap_aggregator.identity.server import ServerIdentity


def config(folder: Path, host: str = "localhost", extra: str = "") -> AggregatorConfig:
    text = f'[server]\naddress = "{host}:8443"\nstate = "state"\n{extra}'
    return parse_config(text, "test", folder, AggregatorConfig)


def the_time() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@pytest.fixture
def pki(tmp_path: Path) -> PkiPaths:
    initialise(config(tmp_path), "admin", the_time())
    return pki_paths(config(tmp_path))


def shown(settings: AggregatorConfig, now: datetime.datetime) -> bytes:
    """The certificate that a server started now would show; it must be whole and trusted."""
    authority = load_authority(settings)
    assert authority is not None
    pair = ServerIdentity(settings, authority, now).pair
    assert fits(pair.key_pem, pair.certificate_pem)
    assert verify_chain(pair.certificate_pem, authority.certificate_pem, now).role == "aggregator"
    return pair.certificate_pem


def test_a_good_certificate_is_kept(tmp_path: Path, pki: PkiPaths) -> None:
    assert shown(config(tmp_path), the_time()) == pki.server_certificate.read_bytes()


def test_a_certificate_that_ends_soon_is_replaced(tmp_path: Path, pki: PkiPaths) -> None:
    before = pki.server_certificate.read_bytes()
    later = the_time() + datetime.timedelta(days=380)
    after = shown(config(tmp_path), later)
    assert after != before
    assert certificate_facts(after).not_after > later + datetime.timedelta(days=300)


def test_a_new_name_for_the_downloads_gets_into_the_certificate(tmp_path: Path, pki: PkiPaths) -> None:
    before = pki.server_certificate.read_bytes()
    extra = '[downloads]\nlisten = "0.0.0.0:8444"\naddress = "models.example.org:443"\n'
    after = shown(config(tmp_path, extra=extra), the_time())
    assert after != before
    assert {"localhost", "models.example.org"} <= set(certificate_facts(after).dns_names)


def test_a_deleted_certificate_is_made_anew(tmp_path: Path, pki: PkiPaths) -> None:
    before = pki.server_certificate.read_bytes()
    pki.server_certificate.unlink()
    pki.server_key.unlink()
    assert shown(config(tmp_path), the_time()) != before


def test_a_key_without_its_certificate_is_replaced(tmp_path: Path, pki: PkiPaths) -> None:
    pki.server_key.write_bytes(key_pem(new_key()))
    shown(config(tmp_path), the_time())


def test_a_new_address_gets_a_certificate_that_names_it(tmp_path: Path, pki: PkiPaths) -> None:
    certificate = shown(config(tmp_path, "fedmap.example.org"), the_time())
    assert "fedmap.example.org" in certificate_facts(certificate).dns_names
    assert pki.server_certificate.read_bytes() == certificate
