"""How sites get their certificates: a one-time token for the first, the current certificate for the
next.

The private key stays at the site; only requests come here. A token is used up in the same transaction
that records the certificate, so that of two callers with one token one gets a certificate, and a failure
uses nothing up. With external PKI there is nothing to issue.
"""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from structlog.typing import FilteringBoundLogger

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import LimitError, RejectedError, StateError, TokenError
from fedmap.names import check_site_name
from fedmap.process.log import get_logger
from fedmap.trust.pki import CertificateAuthority, Identity, certificate_facts, check_csr
from fedmap_aggregator.identity.callers import Caller, IdentityResolver
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.store import CertificateRow, SiteRow, Store
from fedmap_aggregator.studies.liveness import Liveness

MOST_REQUEST = 64 * 1024  # bytes
MOST_A_DAY = 20  # certificates of one site
DAY_MS = 24 * 3600 * 1000


def token_hash(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.strip().encode()).hexdigest()


def count_sites(store: Store, metrics: AggregatorMetrics) -> None:
    """Tells the metrics how many sites are in which state, and how long their certificates hold."""
    with store.reading() as transaction:
        sites = transaction.sites.list()
        certificates = transaction.certificates.list_role("site")
    active = {row.name for row in sites if row.state == "active"}
    ends: dict[str, float] = {}
    for one in certificates:
        if one.name in active and one.revoked_at is None:
            ends[one.name] = max(ends.get(one.name, 0.0), one.not_after / 1000)
    metrics.sites(Counter(row.state for row in sites), ends)


@dataclass(frozen=True)
class EnrolmentHandler:
    """EnrolmentService."""

    store: Store
    authority: CertificateAuthority | None
    site_days: int
    resolver: IdentityResolver
    liveness: Liveness
    metrics: AggregatorMetrics
    clock_ms: Callable[[], int]
    log: FilteringBoundLogger = field(default_factory=get_logger, init=False)

    def enrol(self, request: values.EnrolRequest) -> values.EnrolResponse:
        """A certificate for an invited site. Its earlier certificates are revoked with this."""
        authority = self._issuing_authority()
        if len(wire.write(request)) > MOST_REQUEST:
            raise RejectedError(
                "the request is larger than 64 KiB", hint="make a new request with `fedmap-site enrol`"
            )
        site = check_site_name(request.site)
        check_csr(request.csr_pem, Identity("site", site))
        now = self.clock_ms()
        version = "".join(c for c in request.software_version[:64] if c.isprintable())
        with self.store.transaction() as transaction:
            invitation = transaction.invitations.take(token_hash(request.token), now)
            if invitation.site != site:
                raise TokenError(
                    "the token was made for another site",
                    hint="check the site's name in its configuration, or ask the operator for an invitation",
                )
            revoked = transaction.certificates.revoke_all("site", site, now)
            certificate, row = self._issue(authority, request.csr_pem, site, now)
            transaction.certificates.add(row)
            transaction.sites.upsert(SiteRow(site, invitation.tier, invitation.region, "active", version))
            transaction.audit.append(
                f"site:{site}",
                "site.enrol",
                f"site:{site}",
                {"serial": row.serial, "tier": str(invitation.tier), "revoked": str(revoked)},
                now,
            )
        self.resolver.forget()
        self.liveness.forget(site)
        count_sites(self.store, self.metrics)
        self.log.info("site_enrolled", site=site, tier=invitation.tier, serial=row.serial)
        return values.EnrolResponse(certificate, authority.certificate_pem)

    def renew(self, caller: Caller, request: values.RenewRequest) -> values.RenewResponse:
        """A further certificate for a new key of the same site."""
        authority = self._issuing_authority()
        now = self.clock_ms()
        certificate, row = self._issue(authority, request.csr_pem, caller.name, now)
        with self.store.transaction() as transaction:
            issued = transaction.certificates.list_of("site", caller.name)
            if sum(known.not_before > now - DAY_MS for known in issued) >= MOST_A_DAY:
                raise LimitError(
                    f"{caller.name} was given {MOST_A_DAY} certificates within a day",
                    hint="look for an agent that cannot keep its certificate: a full or read-only disk",
                )
            transaction.certificates.add(row)
            transaction.audit.append(
                caller.actor, "certificate.renew", f"site:{caller.name}", {"serial": row.serial}, now
            )
        count_sites(self.store, self.metrics)
        self.log.info("certificate_renewed", site=caller.name, serial=row.serial)
        return values.RenewResponse(certificate)

    def remember_version(self, caller: Caller, software_version: str) -> None:
        """What the agent says that it runs; written only when it changes."""
        version = "".join(c for c in software_version[:64] if c.isprintable())
        with self.store.reading() as transaction:
            known = transaction.sites.get(caller.name)
        if known is None or known.software_version == version:
            return
        with self.store.transaction() as transaction:
            current = transaction.sites.get(caller.name)
            if current is not None:
                transaction.sites.upsert(replace(current, software_version=version))

    def _issue(
        self, authority: CertificateAuthority, csr_pem: bytes, site: str, now: int
    ) -> tuple[bytes, CertificateRow]:
        moment = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC)
        certificate = authority.issue(csr_pem, Identity("site", site), self.site_days, moment)
        facts = certificate_facts(certificate)
        row = CertificateRow(
            facts.serial, "site", site, _ms(facts.not_before), _ms(facts.not_after), revoked_at=None
        )
        return certificate, row

    def _issuing_authority(self) -> CertificateAuthority:
        if self.authority is None:
            raise StateError(
                "this federation's certificates come from an external PKI, so none are issued here",
                hint="get a client certificate from that PKI, with the URI SAN fedmap:site:NAME, and give it "
                "to `fedmap-site enrol`",
            )
        return self.authority


def _ms(moment: datetime.datetime) -> int:
    return int(moment.timestamp() * 1000)
