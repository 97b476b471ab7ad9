"""Who may see and take which bundle, over gRPC and over HTTPS: tiers, revocation, links that work once."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.contract.v1 import values
from fedmap.errors import NotAllowedError, NotFoundError, StateError
from fedmap.trust.pki import Identity, new_key
from fedmap.web.catalogue import Visitor
from tests.aggregator.centre import OPERATOR, Centre, Site, centre_in
from tests.aggregator.releases import actions, link, make_finished, release, reopened, withdraw

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one T2 and one T3 bundle."""
    finished = make_finished(tmp_path_factory.mktemp("finished"))
    with centre_in(finished) as centre:
        for tier in (2, 3):
            release(centre, tier=tier)
    return finished


@pytest.fixture
def centre(state: Path, tmp_path: Path) -> Iterator[Centre]:
    with reopened(state, tmp_path) as centre:
        yield centre


def bundle(centre: Centre, tier: int) -> values.ReleasedBundle:
    return release(centre, tier=tier).bundle


def visitor(site: Site) -> Visitor:
    return Visitor(ssl.PEM_cert_to_DER_cert(site.certificate.decode()), "10.1.2.3", "")


def holder(token: str) -> Visitor:
    return Visitor(None, "10.9.9.9", token)


def fetch(centre: Centre, site: Site, name: str, version: int = 1, offset: int = 0) -> bytes:
    request = values.FetchBundleRequest(name=name, version=version, offset=offset)
    return b"".join(centre.bundles.fetch(site.caller, request))


def test_a_t3_site_is_given_no_prior(centre: Centre) -> None:
    clinic = centre.enrolled("clinic", tier=3)
    assert [one.name for one in centre.bundles.list_bundles(clinic.caller).bundles] == ["small-binary-t3"]
    assert [e.manifest.name for e in centre.downloads.entries(visitor(clinic))] == ["small-binary-t3"]
    with pytest.raises(NotFoundError):
        fetch(centre, clinic, "small-binary-t2")
    with pytest.raises(NotFoundError):
        centre.downloads.open(visitor(clinic), "small-binary-t2-1.fedmap")
    assert fetch(centre, clinic, "small-binary-t3")


@pytest.mark.parametrize("tier", [1, 2])
def test_t1_and_t2_sites_are_given_both(centre: Centre, tier: int) -> None:
    site = centre.enrolled("ward", tier=tier)
    names = ["small-binary-t2", "small-binary-t3"]
    assert [one.name for one in centre.bundles.list_bundles(site.caller).bundles] == names
    for name in names:
        path = centre.downloads.open(visitor(site), f"{name}-1.fedmap")
        assert fetch(centre, site, name) == path.read_bytes()


def test_a_fetch_goes_on_from_any_offset_and_not_past_the_end(centre: Centre) -> None:
    site, size = centre.enrolled("ward", tier=2), bundle(centre, 2).size
    whole = fetch(centre, site, "small-binary-t2")
    for offset in (0, 1, size // 2, size - 1, size):
        assert fetch(centre, site, "small-binary-t2", offset=offset) == whole[offset:]
    with pytest.raises(StateError, match="past the end"):
        fetch(centre, site, "small-binary-t2", offset=size + 1)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("small-binary-t2", 0),
        ("small-binary-t2", 2),
        ("small-binary-t2", 2**32 - 1),
        ("\x00", 1),
        ("../t2", 1),
    ],
)
def test_names_and_versions_from_outside_find_what_was_released_and_nothing_else(
    centre: Centre, name: str, version: int
) -> None:
    site = centre.enrolled("ward", tier=2)
    with pytest.raises(NotFoundError):
        fetch(centre, site, name, version)


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        "small-binary-t2-1",
        "small-binary-t2-01.fedmap",
        "small-binary-t2-1.fedmap\n",
        "../small-binary-t2-1.fedmap",
        "small-binary-t2-9999999999999999999.fedmap",
        "small-binary-t4-1.fedmap",
    ],
)
def test_no_other_spelling_of_a_file_name_opens_anything(centre: Centre, file_name: str) -> None:
    site = centre.enrolled("ward", tier=2)
    with pytest.raises(NotFoundError):
        centre.downloads.open(visitor(site), file_name)
    token = link(centre, bundle(centre, 2))
    with pytest.raises(NotFoundError):
        centre.downloads.open(holder(token), file_name)


def test_a_withdrawn_bundle_is_shown_with_its_reason_and_not_handed_out(centre: Centre) -> None:
    site, released = centre.enrolled("ward", tier=2), bundle(centre, 2)
    token = link(centre, released)
    withdraw(centre, released, "wrong unit")
    assert centre.bundles.list_bundles(site.caller).bundles[0].withdrawn == "wrong unit"
    entry = centre.downloads.entries(visitor(site))[0]
    assert (entry.withdrawn, entry.may_download) == ("wrong unit", False)
    with pytest.raises(StateError, match="withdrawn: wrong unit"):
        fetch(centre, site, released.name)
    for who in (visitor(site), holder(token)):
        with pytest.raises(StateError, match="withdrawn: wrong unit"):
            centre.downloads.open(who, released.file_name)


def test_an_expired_bundle_is_shown_and_not_handed_out(centre: Centre) -> None:
    site, released = centre.enrolled("ward", tier=2), bundle(centre, 2)
    centre.clock.now = released.expires_unix_ms
    with pytest.raises(StateError, match="expired on"):
        fetch(centre, site, released.name)
    assert centre.bundles.list_bundles(site.caller).bundles[0].name == released.name


def test_a_revoked_site_sees_nothing_from_its_next_request_on(centre: Centre) -> None:
    site = centre.enrolled("ward", tier=2)
    assert centre.downloads.allowed(visitor(site)).listing
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="ward", reason="left"))
    access = centre.downloads.allowed(visitor(site))
    assert not access.listing
    assert "revoked" in access.reason
    with pytest.raises(NotAllowedError):
        centre.downloads.entries(visitor(site))
    with pytest.raises(NotAllowedError):
        centre.downloads.open(visitor(site), "small-binary-t2-1.fedmap")


def test_a_certificate_that_has_ended_opens_nothing(centre: Centre) -> None:
    site = centre.enrolled("ward", tier=2)
    centre.clock.now += 91 * 24 * HOUR_MS
    assert "ended" in centre.downloads.allowed(visitor(site)).reason


@pytest.mark.parametrize(
    "identity", [Identity("joining"), Identity("operator", "kim"), Identity("aggregator")]
)
def test_certificates_of_other_roles_open_nothing(centre: Centre, identity: Identity) -> None:
    pem = centre.authority.issue(new_key().public_key(), identity, 90, centre.clock.moment)
    who = Visitor(ssl.PEM_cert_to_DER_cert(pem.decode()), "10.1.2.3", "")
    assert not centre.downloads.allowed(who).listing
    with pytest.raises(NotAllowedError):
        centre.downloads.open(who, "small-binary-t3-1.fedmap")


def test_a_visitor_with_nothing_is_told_where_to_ask(centre: Centre) -> None:
    access = centre.downloads.allowed(Visitor(None, "10.1.2.3", ""))
    assert not access.listing
    assert "download link" in access.hint
    assert centre.downloads.withdrawals() is not None
    assert centre.downloads.key_fingerprint() == centre.release_key.fingerprint


def test_a_link_opens_one_bundle_and_is_spent_by_its_last_byte(centre: Centre) -> None:
    released = bundle(centre, 2)
    who = holder(link(centre, released))
    (entry,) = centre.downloads.entries(who)
    assert (entry.manifest.file_name, entry.sha256) == (released.file_name, released.sha256)
    for _ in range(3):  # a download that breaks is taken up again
        centre.downloads.open(who, released.file_name)
    with pytest.raises(NotFoundError, match="does not lead"):
        centre.downloads.open(who, "small-binary-t3-1.fedmap")
    centre.downloads.finished(who, released.file_name)
    centre.downloads.finished(who, released.file_name)
    with pytest.raises(StateError, match="has been used"):
        centre.downloads.open(who, released.file_name)
    with pytest.raises(StateError, match="has been used"):
        centre.downloads.entries(who)
    spent = [entry for entry in actions(centre) if entry[1].startswith("bundle.link")]
    assert [action for _, action, _ in spent] == ["bundle.link", "bundle.link_spent"]
    centre.restart()
    with pytest.raises(StateError, match="has been used"):
        centre.downloads.open(who, released.file_name)


def test_a_link_that_has_expired_opens_nothing(centre: Centre) -> None:
    who = holder(link(centre, bundle(centre, 3), hours=2))
    centre.clock.now += 2 * HOUR_MS - 1
    centre.downloads.open(who, "small-binary-t3-1.fedmap")
    centre.clock.now += 1
    with pytest.raises(StateError, match="expired"):
        centre.downloads.open(who, "small-binary-t3-1.fedmap")


@pytest.mark.parametrize("token", ["x", "A" * 43, "A" * 100_000, "ä\x00\udcff"])
def test_a_guessed_link_is_not_found(centre: Centre, token: str) -> None:
    with pytest.raises(NotFoundError, match="no such download link"):
        centre.downloads.entries(holder(token))


def test_the_token_of_a_link_is_nowhere_on_the_disk(centre: Centre) -> None:
    token = link(centre, bundle(centre, 2))
    centre.store.close()
    for path in centre.folder.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_downloads_are_in_the_audit_log_once_they_are_whole(centre: Centre) -> None:
    site, released = centre.enrolled("ward", tier=2), bundle(centre, 2)
    request = values.FetchBundleRequest(name=released.name, version=1)
    broken = centre.bundles.fetch(site.caller, request)
    next(broken)
    broken.close()  # type: ignore[attr-defined]
    assert not [entry for entry in actions(centre) if entry[1] == "bundle.download"]
    fetch(centre, site, released.name)
    centre.downloads.finished(visitor(site), released.file_name)
    found = [entry for entry in actions(centre) if entry[1] == "bundle.download"]
    assert found == [("site:ward", "bundle.download", released.file_name)] * 2
