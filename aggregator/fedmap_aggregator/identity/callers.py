"""Who is calling, and may they? The certificate says who, one table says what, all else is denied.

Order of the checks on every call: (1) the certificate is within its dates, also on a connection that is
older than they are; (2) it names exactly one FedMAP identity; (3) it is not revoked, nor is its site; (4)
the table has a row for the call that lists the role and tier. What a caller may see of one study is the
handlers' business.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from fedmap.errors import NotAllowedError
from fedmap.trust.pki import CertificateFacts, Role, certificate_facts


@dataclass(frozen=True)
class Caller:
    """One authenticated caller. `tier` is 0 for everybody who is not a site."""

    role: Role
    name: str
    tier: int
    serial: str

    @property
    def key(self) -> str:
        """For limits and logs: all holders of the joining certificate are one caller."""
        return f"{self.role}:{self.name}" if self.name else self.role

    @property
    def actor(self) -> str:
        """As the audit log names the caller."""
        return self.key


@dataclass(frozen=True)
class Allowed:
    """Which roles may make a call; of the sites, which tiers."""

    roles: frozenset[Role]
    tiers: frozenset[int] = frozenset()


_ANYBODY: Final = Allowed(frozenset(("aggregator", "site", "operator", "joining")), frozenset((1, 2, 3)))
_JOINING: Final = Allowed(frozenset(("joining",)))
_SITES: Final = Allowed(frozenset(("site",)), frozenset((1, 2, 3)))
_T1: Final = Allowed(frozenset(("site",)), frozenset((1,)))
_OPERATOR: Final = Allowed(frozenset(("operator",)))

AUTHORISATION: Final[Mapping[str, Allowed]] = {
    "/fedmap.v1.EnrolmentService/Enrol": _JOINING,
    "/fedmap.v1.EnrolmentService/Renew": _SITES,
    "/fedmap.v1.FederationService/Hello": _SITES,
    "/fedmap.v1.FederationService/ListStudies": _T1,
    "/fedmap.v1.FederationService/Approve": _T1,
    "/fedmap.v1.FederationService/Leave": _T1,
    "/fedmap.v1.FederationService/NextTask": _T1,
    "/fedmap.v1.FederationService/FetchPrior": _T1,
    "/fedmap.v1.FederationService/SubmitAnswer": _T1,
    "/fedmap.v1.FederationService/Heartbeat": _T1,
    "/fedmap.v1.BundleService/ListBundles": _SITES,  # a T3 site is shown tier-3 bundles only
    "/fedmap.v1.BundleService/FetchBundle": _SITES,
    "/fedmap.v1.BundleService/GetWithdrawals": _SITES,
    "/fedmap.v1.OperatorService/Invite": _OPERATOR,
    "/fedmap.v1.OperatorService/ListSites": _OPERATOR,
    "/fedmap.v1.OperatorService/RevokeSite": _OPERATOR,
    "/fedmap.v1.OperatorService/CreateStudy": _OPERATOR,
    "/fedmap.v1.OperatorService/ControlStudy": _OPERATOR,
    "/fedmap.v1.OperatorService/GetStatus": _OPERATOR,
    "/fedmap.v1.OperatorService/VerifyAudit": _OPERATOR,
    "/fedmap.v1.OperatorService/ExportDrop": _OPERATOR,
    "/fedmap.v1.OperatorService/ImportDrop": _OPERATOR,
    "/fedmap.v1.OperatorService/ReleaseBundle": _OPERATOR,
    "/fedmap.v1.OperatorService/ListReleased": _OPERATOR,
    "/fedmap.v1.OperatorService/WithdrawBundle": _OPERATOR,
    "/fedmap.v1.OperatorService/MakeDownloadLink": _OPERATOR,
    "/fedmap.v1.OperatorService/DownloadBundle": _OPERATOR,
    "/fedmap.v1.OperatorService/PurgeStudy": _OPERATOR,
    "/fedmap.v1.OperatorService/FetchDeletion": _OPERATOR,
    "/grpc.health.v1.Health/Check": _ANYBODY,  # no row for Watch: it would hold a thread
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _OPERATOR,  # where it is served at all
}


@dataclass(frozen=True)
class SiteStanding:
    """What the register says of a site: its tier, and its state (invited, active or revoked)."""

    tier: int
    state: str


class Register(Protocol):
    """What is asked of the store about identities."""

    def standing(self, site: str) -> SiteStanding | None: ...

    def is_revoked(self, serial: str) -> bool: ...


@dataclass(frozen=True)
class _Known:
    facts: CertificateFacts
    caller: Caller


class IdentityResolver:
    """Certificates to callers. Remembers sites until `forget`, which every change of a standing calls.

    Operators are looked up every time: they are revoked by another process, on the state folder.
    """

    def __init__(self, register: Register, remembered: int = 4096) -> None:
        self._register = register
        self._remembered = remembered
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._generation = 0
        self._lock = threading.Lock()

    def resolve(self, certificate_pem: bytes, now_ms: int) -> Caller:
        """The caller behind a certificate that TLS has verified; NotAllowedError with the exact fault."""
        with self._lock:
            known = self._known.get(certificate_pem)
            generation = self._generation
            if known is not None:
                self._known.move_to_end(certificate_pem)
        if known is None:
            facts = certificate_facts(certificate_pem)
            known = _Known(facts, _caller(facts, self._register))
            with self._lock:
                if generation == self._generation and known.caller.role in ("site", "joining"):
                    self._known[certificate_pem] = known
                    if len(self._known) > self._remembered:
                        self._known.popitem(last=False)
        _check_dates(known.facts, now_ms)
        return known.caller

    def forget(self) -> None:
        """A site's standing or a certificate changed: the next call of everybody asks the register again."""
        with self._lock:
            self._generation += 1
            self._known.clear()


def authorise(rpc: str, caller: Caller) -> None:
    """NotAllowedError unless the table lists this caller for this call."""
    allowed = AUTHORISATION.get(rpc)
    if allowed is None:
        raise NotAllowedError(
            "this call is not offered",
            hint="update the program that makes it; health checks use grpc.health.v1.Health/Check",
        )
    if caller.role not in allowed.roles:
        raise NotAllowedError(
            f"a certificate of role {caller.role} may not make this call",
            hint=_ROLE_HINTS[caller.role],
        )
    if caller.role == "site" and caller.tier not in allowed.tiers:
        raise NotAllowedError(
            f"a T{caller.tier} site may not make this call",
            hint="only sites that were invited as T1 take part in training; ask the operator to invite this "
            "site again with another tier",
        )


_ROLE_HINTS: Final[Mapping[Role, str]] = {
    "joining": "the joining certificate opens Enrol and nothing else; run `fedmap-site enrol` first",
    "site": "this call is the operator's; use an operator profile",
    "operator": "this call is a site's; an operator profile cannot take a site's place",
    "aggregator": "the aggregator's own certificate is not for making calls",
}


def _caller(facts: CertificateFacts, register: Register) -> Caller:
    identity = facts.identity
    if identity is None:
        raise NotAllowedError(
            "the certificate names no FedMAP identity",
            hint="the certificate needs exactly one URI name such as fedmap:site:NAME or "
            "fedmap:operator:NAME; have it issued again",
        )
    if register.is_revoked(facts.serial):
        raise NotAllowedError(
            f"the certificate of {identity.role} {identity.name} is revoked".replace("  ", " "),
            hint="ask the operator for a new invitation and enrol again",
        )
    if identity.role != "site":
        return Caller(identity.role, identity.name, 0, facts.serial)
    standing = register.standing(identity.name)
    if standing is None:
        raise NotAllowedError(
            f"the site {identity.name} is not invited", hint="ask the operator to invite this site"
        )
    if standing.state == "revoked":
        raise NotAllowedError(
            f"the site {identity.name} is revoked", hint="ask the operator why, and for a new invitation"
        )
    if standing.state != "active":
        raise NotAllowedError(
            f"the site {identity.name} is invited and has not enrolled yet",
            hint="run `fedmap-site enrol` with the token of the invitation",
        )
    return Caller("site", identity.name, standing.tier, facts.serial)


def _check_dates(facts: CertificateFacts, now_ms: int) -> None:
    if now_ms >= facts.not_after.timestamp() * 1000:
        raise NotAllowedError(
            f"the certificate ended on {facts.not_after:%Y-%m-%d %H:%M} UTC",
            hint="an agent renews its certificate by itself while it runs; after it has ended, ask the "
            "operator for a new invitation and enrol again. Also check this machine's clock",
        )
    if now_ms < facts.not_before.timestamp() * 1000:
        raise NotAllowedError(
            f"the certificate is not valid before {facts.not_before:%Y-%m-%d %H:%M} UTC",
            hint="check the clocks of the aggregator and of the machine that issued the certificate",
        )
