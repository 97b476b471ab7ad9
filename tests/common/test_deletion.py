"""Certificates of deletion: who signed, and that nothing in them was changed."""

from __future__ import annotations

import datetime
import json

import pytest

from fedmap.errors import FedmapError, IncompatibleError, IntegrityError, NotAllowedError
from fedmap.trust.deletion import (
    CERTIFICATE,
    Deleted,
    DeletionRecord,
    Place,
    Trust,
    deletion_lines,
    read_deletion,
)
from fedmap.trust.envelope import CertificateSigner, canonical
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap.trust.signing import fingerprint, new_release_key, public_key_of

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
KEY = new_release_key()
PAPER = fingerprint(public_key_of(KEY))
AUTHORITY, _ = CertificateAuthority.create("test", 3650, NOW)


def record(place: Place = "aggregator", owner: str = "fedmap.example.org:8443") -> DeletionRecord:
    return DeletionRecord(
        study="stroke",
        terms_digest="1" * 64,
        place=place,
        owner=owner,
        actor="operator:kim",
        begun_unix_ms=NOW_MS,
        finished_unix_ms=NOW_MS + 5,
        software_version="0.2.0",
        rows={"answers": 2},
        deleted=(
            Deleted(kind="answer", sha256="2" * 64, bytes=0),
            Deleted(kind="blob", sha256="3" * 64, bytes=1200),
        ),
        kept=("the audit log",),
        audit_entries=9,
        audit_head="4" * 64,
    )


def signer(site: str = "north") -> CertificateSigner:
    key = new_key()
    certificate = AUTHORITY.issue(key.public_key(), Identity("site", site), 1, NOW)
    return CertificateSigner(certificate, key_pem(key))


def test_the_centres_certificate_is_verified_with_the_fingerprint_from_paper() -> None:
    signed = CERTIFICATE.sign_by_release_key(record(), KEY)
    found, by = read_deletion(signed, Trust({PAPER}))
    assert (found, by) == (record(), f"release key {PAPER}")
    lines = "\n".join(deletion_lines("x.json", found, by))
    assert "2 answers, 1 file(s), 1,200 bytes" in lines


def test_a_sites_certificate_is_verified_with_the_federations_authority() -> None:
    signed = CERTIFICATE.sign_by_certificate(record("site", "north"), signer())
    found, by = read_deletion(signed, Trust(authority=AUTHORITY.certificate_pem))
    assert found.owner == "north"
    assert "north" in by


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"stroke", b"strike"),
        (b"1200", b"1201"),
        (b'"format": 1', b'"format":1'),
        (b"\n}\n", b"\n} \n"),
    ],
)
def test_a_changed_certificate_is_refused(old: bytes, new: bytes) -> None:
    signed = CERTIFICATE.sign_by_release_key(record(), KEY)
    assert old in signed
    with pytest.raises(IntegrityError):
        read_deletion(signed.replace(old, new, 1), Trust({PAPER}))


def test_a_signature_of_somebody_else_is_refused() -> None:
    other = new_release_key()
    with pytest.raises(NotAllowedError, match="not trusted"):
        read_deletion(CERTIFICATE.sign_by_release_key(record(), other), Trust({PAPER}))
    foreign, _ = CertificateAuthority.create("foreign", 3650, NOW)
    with pytest.raises(FedmapError):
        read_deletion(
            CERTIFICATE.sign_by_certificate(record("site", "north"), signer()),
            Trust(authority=foreign.certificate_pem),
        )


def test_a_site_cannot_sign_for_another_or_for_the_centre() -> None:
    trust = Trust({PAPER}, AUTHORITY.certificate_pem)
    with pytest.raises(IntegrityError, match="says that it comes from south"):
        read_deletion(CERTIFICATE.sign_by_certificate(record("site", "south"), signer("north")), trust)
    with pytest.raises(IntegrityError):
        read_deletion(CERTIFICATE.sign_by_certificate(record(), signer("north")), trust)
    with pytest.raises(IntegrityError, match="not signed by a release key"):
        read_deletion(CERTIFICATE.sign_by_release_key(record("site", "north"), KEY), trust)


def test_without_the_authority_a_sites_certificate_is_not_believed() -> None:
    with pytest.raises(NotAllowedError) as refused:
        read_deletion(CERTIFICATE.sign_by_certificate(record("site", "north"), signer()), Trust({PAPER}))
    assert "--ca" in refused.value.hint


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"deletion": 1}', b'{"deletion": "{}", "signed": {}}'])
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        read_deletion(data, Trust({PAPER}))


def test_a_certificate_of_a_later_format_is_told() -> None:
    with pytest.raises(IncompatibleError, match="format 1"):
        read_deletion(b'{"format": 2}', Trust({PAPER}))


@pytest.mark.parametrize("moment", [10**20, 253_402_300_800_000, -1])
@pytest.mark.parametrize("field", ["finished_unix_ms", "begun_unix_ms"])
def test_a_time_that_no_calendar_has_is_neither_signed_nor_read(moment: int, field: str) -> None:
    changed = record().model_copy(update={field: moment})
    with pytest.raises(IntegrityError, match="its content is not in its form"):
        CERTIFICATE.sign_by_release_key(changed, KEY)
    with pytest.raises(IntegrityError, match="its content is not in its form"):
        CERTIFICATE.parsed(canonical(changed.model_dump(mode="json")), DeletionRecord)


@pytest.mark.parametrize("name", ["certificate", "signature", "key", "other", "\ud800"])
def test_half_a_character_is_a_damaged_certificate(name: str) -> None:
    trust = Trust({PAPER}, AUTHORITY.certificate_pem)
    by_site = CERTIFICATE.sign_by_certificate(record("site", "north"), signer())
    for signed in (by_site, CERTIFICATE.sign_by_release_key(record(), KEY)):
        form = json.loads(signed)
        form["signed"][name] = "\ud800"
        with pytest.raises(IntegrityError, match="cannot be read as JSON"):
            read_deletion(json.dumps(form).encode(), trust)
