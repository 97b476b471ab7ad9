"""Sites, invitations and certificates, on both databases."""

from __future__ import annotations

import pytest

from fedmap.errors import NotFoundError, StorageError, TokenError
from fedmap_aggregator.store import CertificateRow, Store
from tests.aggregator.store.conftest import NOW, a_site

HOUR = 3_600_000


def invite(store: Store, token_hash: str = "hash-1", site: str = "leeds", expires: int = NOW + HOUR) -> None:
    with store.transaction() as transaction:
        transaction.sites.upsert(a_site(site))
        transaction.invitations.add(token_hash, site, 2, "south", expires)


def test_a_site_comes_back_as_it_was_stored(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.sites.upsert(a_site())
    with store.reading() as transaction:
        assert transaction.sites.get("leeds") == a_site()
        assert transaction.sites.get("bath") is None


def test_upsert_replaces_what_was_known(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.sites.upsert(a_site())
        transaction.sites.upsert(type(a_site())("leeds", 3, "", "revoked"))
        (site,) = transaction.sites.list()
    assert (site.tier, site.region, site.state, site.software_version) == (3, "", "revoked", "")


def test_sites_are_sorted_by_name_whatever_the_database_sorts_by(store: Store) -> None:
    names = ["z", "a-b", "ab", "a_b", "1st"]
    with store.transaction() as transaction:
        for name in names:
            transaction.sites.upsert(a_site(name))
        assert [site.name for site in transaction.sites.list()] == sorted(names)


def test_state_of_an_unknown_site_cannot_be_set(store: Store) -> None:
    with pytest.raises(NotFoundError, match="bath"), store.transaction() as transaction:
        transaction.sites.set_state("bath", "revoked")


def test_revoked_state_is_seen_by_the_next_reader(store: Store, other_store: Store) -> None:
    with store.transaction() as transaction:
        transaction.sites.upsert(a_site())
    with store.transaction() as transaction:
        transaction.sites.set_state("leeds", "revoked")
    with other_store.reading() as transaction:
        site = transaction.sites.get("leeds")
    assert site is not None
    assert site.state == "revoked"


def test_a_token_works_once(store: Store) -> None:
    invite(store)
    with store.transaction() as transaction:
        row = transaction.invitations.take("hash-1", NOW)
    assert (row.site, row.tier, row.region, row.used_at) == ("leeds", 2, "south", NOW)
    with pytest.raises(TokenError, match="has been used"), store.transaction() as transaction:
        transaction.invitations.take("hash-1", NOW + 1)


@pytest.mark.parametrize(
    ("token_hash", "now", "said"),
    [
        ("hash-2", NOW, "not one of this federation"),
        ("hash-1", NOW + HOUR, "has expired"),
        ("hash-1", NOW + HOUR + 1, "has expired"),
    ],
)
def test_a_wrong_or_expired_token_is_refused(store: Store, token_hash: str, now: int, said: str) -> None:
    invite(store)
    with pytest.raises(TokenError, match=said), store.transaction() as transaction:
        transaction.invitations.take(token_hash, now)


def test_a_token_is_not_used_up_when_the_enrolment_fails_after_it(store: Store) -> None:
    invite(store)

    def enrol() -> None:
        with store.transaction() as transaction:
            transaction.invitations.take("hash-1", NOW)
            raise TokenError("the token is another site's", hint="")

    with pytest.raises(TokenError, match="another site"):
        enrol()
    with store.transaction() as transaction:
        assert transaction.invitations.take("hash-1", NOW).site == "leeds"


def test_withdrawn_tokens_are_refused_and_those_of_other_sites_are_not(store: Store) -> None:
    invite(store, "hash-1")
    invite(store, "hash-2")
    invite(store, "hash-3", "bath")
    with store.transaction() as transaction:
        transaction.invitations.take("hash-1", NOW)
        assert transaction.invitations.withdraw("leeds", NOW) == 1
        assert transaction.invitations.withdraw("leeds", NOW) == 0
    with pytest.raises(TokenError, match="withdrawn"), store.transaction() as transaction:
        transaction.invitations.take("hash-2", NOW)
    with store.transaction() as transaction:
        assert transaction.invitations.take("hash-3", NOW).site == "bath"


def test_an_invitation_for_a_site_that_is_not_registered_is_refused(store: Store) -> None:
    with pytest.raises(StorageError, match="breaks a rule"), store.transaction() as transaction:
        transaction.invitations.add("hash-1", "nowhere", 1, "", NOW)


def test_a_tier_that_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(StorageError, match="breaks a rule"), store.transaction() as transaction:
        transaction.sites.upsert(type(a_site())("leeds", 4, "", "active"))


def test_revocation_takes_all_certificates_of_one_holder_and_no_others(store: Store) -> None:
    rows = [
        CertificateRow("01", "site", "leeds", NOW, NOW + 1),
        CertificateRow("02", "site", "leeds", NOW, NOW + 2),
        CertificateRow("03", "site", "bath", NOW, NOW + 3),
        CertificateRow("04", "operator", "leeds", NOW, NOW + 4),
    ]
    with store.transaction() as transaction:
        for row in rows:
            transaction.certificates.add(row)
        assert [row.serial for row in transaction.certificates.list_of("site", "leeds")] == ["02", "01"]
        assert transaction.certificates.revoke_all("site", "leeds", NOW + 9) == 2
        assert transaction.certificates.revoke_all("site", "leeds", NOW + 10) == 0
    with store.reading() as transaction:
        revoked = [row.serial for row in rows if transaction.certificates.is_revoked(row.serial)]
        assert {row.revoked_at for row in transaction.certificates.list_of("site", "leeds")} == {NOW + 9}
        assert not transaction.certificates.is_revoked("05")
    assert revoked == ["01", "02"]


def test_a_nul_in_what_a_site_says_of_itself_is_stored_and_breaks_nothing(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.sites.upsert(type(a_site())("leeds", 1, "north", "active", "1.0\x00; DROP TABLE sites"))
    with store.reading() as transaction:
        site = transaction.sites.get("leeds")
    assert site is not None
    assert site.software_version == "1.0\N{REPLACEMENT CHARACTER}; DROP TABLE sites"
