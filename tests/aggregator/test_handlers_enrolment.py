"""Enrolment without a network: tokens, requests, renewal, and federations whose certificates come from
elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.contract.v1 import values
from fedmap.errors import LimitError, NotAllowedError, RejectedError, StateError, TokenError
from fedmap.trust.pki import Identity, make_csr, new_key
from fedmap_aggregator.identity.callers import Caller
from fedmap_aggregator.rpc.handlers.enrolment import DAY_MS, MOST_A_DAY, token_hash
from tests.aggregator.centre import OPERATOR, Centre, centre_in


def _request(site: str, token: str) -> values.EnrolRequest:
    return values.EnrolRequest(site=site, token=token, csr_pem=make_csr(new_key(), Identity("site", site)))


def test_the_token_itself_is_never_stored(centre: Centre) -> None:
    token = centre.invite("north").token
    centre.store.close()
    stored = b"".join(path.read_bytes() for path in centre.folder.glob("fedmap.db*"))
    assert token.encode() not in stored
    assert token_hash(token).encode() in stored


def test_a_new_invitation_withdraws_the_one_before(centre: Centre) -> None:
    first, second = centre.invite("north").token, centre.invite("north").token
    with pytest.raises(TokenError, match="withdrawn"):
        centre.enrolment.enrol(_request("north", first))
    centre.enrolment.enrol(_request("north", second))


def test_a_site_that_renews_without_end_is_stopped_for_the_day(centre: Centre) -> None:
    centre.enrolled("north")
    north = Caller("site", "north", 1, "1")
    request = values.RenewRequest(csr_pem=make_csr(new_key(), Identity("site", "north")))
    for _ in range(MOST_A_DAY - 1):
        centre.enrolment.renew(north, request)
    with pytest.raises(LimitError, match="within a day"):
        centre.enrolment.renew(north, request)
    centre.clock.now += DAY_MS
    centre.enrolment.renew(north, request)


def test_an_active_site_stays_active_while_a_second_invitation_waits(centre: Centre) -> None:
    north = centre.enrolled("north")
    centre.invite("north")
    assert centre.resolver.resolve(north.certificate, centre.clock()).name == "north"


def test_a_revoked_site_that_is_invited_again_gets_in_only_with_its_new_certificate(centre: Centre) -> None:

    old = centre.enrolled("north")
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="north", reason="x"))
    new = centre.enrolled("north")
    assert centre.resolver.resolve(new.certificate, centre.clock()).name == "north"
    with pytest.raises(NotAllowedError, match="revoked"):
        centre.resolver.resolve(old.certificate, centre.clock())


def test_the_tier_is_that_of_the_invitation(centre: Centre) -> None:
    centre.enrolled("north", tier=1)
    again = centre.enrolled("north", tier=2)
    assert centre.resolver.resolve(again.certificate, centre.clock()).tier == 2


def test_a_token_of_an_unfinished_enrolment_is_not_used_up(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = centre.invite("north").token

    def fail(*_: object) -> None:
        raise RejectedError("no", hint="-")

    with monkeypatch.context() as patch:
        patch.setattr("fedmap_aggregator.store.identity_records.CertificateRecords.add", fail)
        with pytest.raises(RejectedError):
            centre.enrolment.enrol(_request("north", token))
    centre.enrolment.enrol(_request("north", token))


def test_an_oversized_request_is_rejected(centre: Centre) -> None:
    request = values.EnrolRequest(site="north", token="t", csr_pem=b"x" * 70_000)
    with pytest.raises(RejectedError, match="64 KiB"):
        centre.enrolment.enrol(request)


@pytest.mark.parametrize("name", ["", "North", "a/b", "../x", "a\nb", "é"])
def test_a_bad_name_is_rejected(centre: Centre, name: str) -> None:
    with pytest.raises(RejectedError):
        centre.enrolment.enrol(values.EnrolRequest(site=name, token="t"))


def test_the_software_version_is_kept_and_made_harmless(centre: Centre) -> None:
    north = centre.enrolled("north")
    request = values.HelloRequest(oldest_protocol=1, newest_protocol=9, software_version="2.0\x1b[2J")
    centre.federation.hello(north.caller, request)
    (site,) = centre.operator.list_sites().sites
    assert site.software_version == "2.0[2J"


def test_with_external_certificates_an_invitation_activates_and_enrolment_is_refused(tmp_path: Path) -> None:
    with centre_in(tmp_path, issues_certificates=False) as centre:
        invited = centre.invite("north")
        assert (invited.token, invited.expires_unix_ms) == ("", 0)
        certificate = centre.authority.issue(
            new_key().public_key(), Identity("site", "north"), 90, centre.clock.moment
        )
        assert centre.resolver.resolve(certificate, centre.clock()).tier == 1
        with pytest.raises(StateError, match="external") as caught:
            centre.enrolment.enrol(_request("north", "t"))
        assert "fedmap:site:" in caught.value.hint
        with pytest.raises(StateError):
            centre.enrolment.renew(Caller("site", "north", 1, "1"), values.RenewRequest())
