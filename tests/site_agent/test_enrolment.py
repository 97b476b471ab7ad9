"""How a site gets its certificate, and what it refuses to believe."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest

from fedmap.errors import ConfigError, FedmapError, IntegrityError, NotAllowedError, RejectedError, StateError
from fedmap.transport.client import Credentials, Route
from fedmap.trust.certificates import Identity, certificate_facts
from fedmap.trust.pki import check_csr, fits
from fedmap_site.identity.enrolment import (
    PENDING,
    accept_certificate,
    adopt_external,
    keep_pending,
    new_request,
    pending_key,
    read_joining,
    refuse_second_enrolment,
    same_fingerprint,
    settle,
)
from fedmap_site.identity.files import GENERATIONS, LINK, SiteIdentity, open_to_others, read_identity
from fedmap_site.link.connection import Connection
from tests.site_agent.federation_double import AggregatorDouble, Authority, now


def test_a_site_enrols_with_a_key_that_was_made_here(tmp_path: Path) -> None:
    with AggregatorDouble() as aggregator:
        path = aggregator.authority.joining_file(tmp_path / "joining.pem")
        joining = read_joining(path, aggregator.authority.ca.fingerprint)
        request = new_request("a")
        route = Route(aggregator.address)
        credentials = Credentials(joining.certificate, joining.key, joining.authority)
        with Connection(route, credentials) as connection:
            issued = connection.enrol("a", "token", request.csr, "1.0")
    accepted = accept_certificate("a", request.key, issued.certificate_pem, issued.ca_pem, now())
    settle(tmp_path / "state", accepted)
    identity = read_identity(tmp_path / "state")
    assert fits(identity.key, identity.certificate)
    assert certificate_facts(identity.certificate).identity == Identity("site", "a")
    assert b"PRIVATE" not in request.csr


def test_the_request_names_this_site_and_is_signed_by_its_key() -> None:
    check_csr(new_request("a").csr, Identity("site", "a"))


def test_identity_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    settle(tmp_path, Authority().site())
    folder = (tmp_path / LINK).resolve()
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert open_to_others(tmp_path) == ()
    (folder / "key.pem").chmod(0o644)
    assert open_to_others(tmp_path) == ("key.pem",)


def test_a_joining_file_with_another_fingerprint_is_not_believed(tmp_path: Path) -> None:
    path = Authority().joining_file(tmp_path / "joining.pem")
    with pytest.raises(IntegrityError, match="fingerprint"):
        read_joining(path, Authority().ca.fingerprint)


def test_a_fingerprint_may_be_written_in_any_of_the_usual_ways() -> None:
    fingerprint = Authority().ca.fingerprint
    bare = fingerprint.removeprefix("SHA256:").replace(":", "")
    assert same_fingerprint(fingerprint, bare.lower())
    assert same_fingerprint(fingerprint, f" sha256:{bare} ")
    assert not same_fingerprint(fingerprint, "")
    assert not same_fingerprint(fingerprint, bare[:-1])


@pytest.mark.parametrize("content", [b"", b"not a joining file", b"-----BEGIN CERTIFICATE-----\n"])
def test_a_file_that_is_no_joining_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "joining.pem"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a joining file"):
        read_joining(path, "SHA256:00")


OURS, FOREIGN = Authority(), Authority()
ENDED = OURS.site(days=1, issued=now() - datetime.timedelta(days=5))


@pytest.mark.parametrize(
    ("key_of", "shown", "error", "words"),
    [
        (OURS.site("b"), None, NotAllowedError, "site b"),
        (OURS.site(), OURS.site(), RejectedError, "does not belong to the key"),
        (FOREIGN.site(), None, IntegrityError, "."),
        (ENDED, None, IntegrityError, "ended"),
    ],
    ids=["another name", "another key", "foreign authority", "ended"],
)
def test_a_certificate_that_is_not_ours_is_refused(
    key_of: SiteIdentity, shown: SiteIdentity | None, error: type[FedmapError], words: str
) -> None:
    certificate = (shown or key_of).certificate
    with pytest.raises(error, match=words):
        accept_certificate("a", key_of.key, certificate, OURS.ca.certificate_pem, now())


def test_a_certificate_of_the_trusts_own_pki_is_taken_over_and_marked(tmp_path: Path) -> None:
    own = Authority().site()
    for name, pem in (("c", own.certificate), ("k", own.key), ("ca", own.authority)):
        (tmp_path / name).write_bytes(pem)
    adopt_external(tmp_path / "state", "a", tmp_path / "c", tmp_path / "k", tmp_path / "ca", now())
    assert read_identity(tmp_path / "state").external


def test_a_second_enrolment_needs_to_be_asked_for(tmp_path: Path) -> None:
    refuse_second_enrolment(tmp_path, again=False)
    settle(tmp_path, Authority().site())
    with pytest.raises(StateError, match="already"):
        refuse_second_enrolment(tmp_path, again=False)
    refuse_second_enrolment(tmp_path, again=True)


def test_a_site_without_an_identity_is_told_to_enrol(tmp_path: Path) -> None:
    with pytest.raises(StateError) as raised:
        read_identity(tmp_path)
    assert "enrol" in raised.value.hint


def test_the_key_of_an_offline_request_waits_and_is_gone_once_settled(tmp_path: Path) -> None:
    request = new_request("a")
    keep_pending(tmp_path, request)
    assert pending_key(tmp_path) == request.key
    settle(tmp_path, Authority().site())
    assert not (tmp_path / PENDING).exists()
    with pytest.raises(StateError):
        pending_key(tmp_path)


def test_only_the_identity_in_force_stays_on_disk(tmp_path: Path) -> None:
    authority = Authority()
    for _ in range(3):
        settle(tmp_path, authority.site())
    assert len(list((tmp_path / GENERATIONS).iterdir())) == 1
