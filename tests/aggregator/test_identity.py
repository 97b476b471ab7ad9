"""Who a certificate speaks for, and that one table decides what they may call."""

from __future__ import annotations

import datetime

import pytest

from fedmap.contract import wire
from fedmap.errors import LimitError, NotAllowedError
from fedmap.trust.pki import CertificateAuthority, Identity, Role, certificate_facts, new_key
from fedmap_aggregator.identity.callers import (
    AUTHORISATION,
    Caller,
    IdentityResolver,
    SiteStanding,
    authorise,
)
from fedmap_aggregator.rpc.guard import CallGuard, CallLimiter

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
DAY_MS = 86_400_000


class Register:
    """Sites and revocations in memory, and how often they were asked for."""

    def __init__(self) -> None:
        self.sites = {"north": SiteStanding(1, "active"), "clinic": SiteStanding(3, "active")}
        self.revoked: set[str] = set()
        self.asked = 0

    def standing(self, site: str) -> SiteStanding | None:
        self.asked += 1
        return self.sites.get(site)

    def is_revoked(self, serial: str) -> bool:
        self.asked += 1
        return serial in self.revoked


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("test", 3650, NOW)[0]


def _pem(authority: CertificateAuthority, role: Role, name: str = "") -> bytes:
    return authority.issue(new_key().public_key(), Identity(role, name), 90, NOW)


EVERY_RPC = {rpc.path for name in wire.service_names() for rpc in wire.rpcs(name).values()}


def test_every_call_of_the_contract_has_its_row_and_no_row_is_left_over() -> None:
    ours = {rpc for rpc in AUTHORISATION if rpc.startswith("/fedmap.")}
    assert ours == EVERY_RPC


@pytest.mark.parametrize("rpc", sorted(EVERY_RPC))
def test_no_call_of_the_contract_is_open_to_two_roles(rpc: str) -> None:
    allowed = [
        role for role in ("aggregator", "site", "operator", "joining") if role in AUTHORISATION[rpc].roles
    ]
    assert len(allowed) == 1


def test_a_call_that_is_not_in_the_table_is_denied_to_everybody() -> None:
    for caller in (Caller("operator", "kim", 0, "1"), Caller("site", "north", 1, "2")):
        with pytest.raises(NotAllowedError, match="not offered"):
            authorise("/fedmap.v1.FederationService/NewCall", caller)


def test_the_aggregators_own_certificate_opens_nothing_but_health() -> None:
    own = Caller("aggregator", "", 0, "1")
    authorise("/grpc.health.v1.Health/Check", own)
    for rpc in EVERY_RPC:
        with pytest.raises(NotAllowedError):
            authorise(rpc, own)


@pytest.mark.parametrize("tier", [2, 3])
def test_t2_and_t3_sites_fetch_bundles_and_take_no_part_in_training(tier: int) -> None:
    caller = Caller("site", "clinic", tier, "1")
    allowed = set()
    for rpc in EVERY_RPC:
        try:
            authorise(rpc, caller)
        except NotAllowedError:
            continue
        allowed.add(rpc.rpartition("/")[2])
    assert allowed == {"Hello", "Renew", "ListBundles", "FetchBundle", "GetWithdrawals"}


def test_a_site_is_known_by_its_certificate_and_its_tier_by_the_register(
    authority: CertificateAuthority,
) -> None:
    pem = _pem(authority, "site", "clinic")
    caller = IdentityResolver(Register()).resolve(pem, NOW_MS)
    assert (caller.role, caller.name, caller.tier) == ("site", "clinic", 3)
    assert caller.serial == certificate_facts(pem).serial


def test_a_known_site_is_not_looked_up_again_until_something_changes(
    authority: CertificateAuthority,
) -> None:
    register, pem = Register(), _pem(authority, "site", "north")
    resolver = IdentityResolver(register)
    resolver.resolve(pem, NOW_MS)
    asked = register.asked
    resolver.resolve(pem, NOW_MS)
    assert register.asked == asked
    register.sites["north"] = SiteStanding(1, "revoked")
    resolver.forget()
    with pytest.raises(NotAllowedError, match="revoked"):
        resolver.resolve(pem, NOW_MS)


def test_an_operator_who_is_revoked_by_another_process_is_refused_at_once(
    authority: CertificateAuthority,
) -> None:
    register, pem = Register(), _pem(authority, "operator", "kim")
    resolver = IdentityResolver(register)
    resolver.resolve(pem, NOW_MS)
    register.revoked.add(certificate_facts(pem).serial)
    with pytest.raises(NotAllowedError, match="revoked"):
        resolver.resolve(pem, NOW_MS)


def test_a_remembered_certificate_still_ends_on_time(authority: CertificateAuthority) -> None:
    resolver, pem = IdentityResolver(Register()), _pem(authority, "site", "north")
    resolver.resolve(pem, NOW_MS)
    with pytest.raises(NotAllowedError, match="ended"):
        resolver.resolve(pem, NOW_MS + 91 * DAY_MS)
    with pytest.raises(NotAllowedError, match="not valid before"):
        resolver.resolve(pem, NOW_MS - DAY_MS)


@pytest.mark.parametrize(
    ("site", "words"), [("ghost", "not invited"), ("waiting", "not enrolled"), ("gone", "is revoked")]
)
def test_a_site_that_is_not_active_is_refused_with_the_reason(
    authority: CertificateAuthority, site: str, words: str
) -> None:
    register = Register()
    register.sites |= {"waiting": SiteStanding(1, "invited"), "gone": SiteStanding(1, "revoked")}
    with pytest.raises(NotAllowedError, match=words) as caught:
        IdentityResolver(register).resolve(_pem(authority, "site", site), NOW_MS)
    assert caught.value.hint


def test_a_certificate_without_a_fedmap_name_is_nobody(authority: CertificateAuthority) -> None:
    with pytest.raises(NotAllowedError, match="no FedMAP identity"):
        IdentityResolver(Register()).resolve(authority.certificate_pem, NOW_MS)


def test_a_caller_without_a_certificate_is_refused() -> None:
    guard = CallGuard(IdentityResolver(Register()), 8, lambda: NOW_MS)
    with pytest.raises(NotAllowedError, match="no certificate"):
        guard.identify("/fedmap.v1.FederationService/Hello", None)


def test_the_limit_counts_each_caller_by_itself_and_frees_slots_after_errors() -> None:
    limiter = CallLimiter(1)
    held = limiter.slot("site:a")
    with held, limiter.slot("site:b"), pytest.raises(LimitError), limiter.slot("site:a"):
        pass
    with pytest.raises(ValueError, match="x"), limiter.slot("site:a"):
        raise ValueError("x")
    with limiter.slot("site:a"):
        pass
