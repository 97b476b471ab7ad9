"""The certificate renews itself at two thirds of its life, with a new key, while the old one still works.

The new key and certificate are checked, written as one generation and put in force in one rename; then the
connection is dialled anew. Until that moment the old identity serves, so a failure costs nothing but another
attempt. A certificate of the trust's own PKI is renewed there, not here.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from fedmap.errors import ConfigError
from fedmap.transport.client import Credentials
from fedmap.trust.certificates import CertificateFacts, certificate_facts
from fedmap_site.identity.enrolment import accept_certificate, new_request, settle
from fedmap_site.identity.files import SiteIdentity, read_identity
from fedmap_site.link.connection import Connection

RETRY_SECONDS = 600.0


def renewal_time(facts: CertificateFacts) -> datetime.datetime:
    """Two thirds of the way through the certificate's life."""
    return facts.not_before + (facts.not_after - facts.not_before) * 2 / 3


def credentials_of(identity: SiteIdentity, authority: bytes | None) -> Credentials:
    """What a channel shows; `authority` replaces that of the enrolment where the site configured one."""
    trusted = identity.authority if authority is None else authority
    return Credentials(identity.certificate, identity.key, trusted)


class Renewal:
    """Looks after the certificate of one state folder."""

    def __init__(self, state: Path, site: str, authority: bytes | None) -> None:
        self._state = state
        self._site = site
        self._authority = authority
        self._identity = read_identity(state)
        self._not_before_this: datetime.datetime | None = None

    @property
    def facts(self) -> CertificateFacts:
        """Of the certificate in force."""
        return certificate_facts(self._identity.certificate)

    def credentials(self) -> Credentials:
        return credentials_of(self._identity, self._authority)

    def due(self, now: datetime.datetime) -> bool:
        """Whether to renew now. After a failed attempt the next one has to wait a while."""
        if self._identity.external or (self._not_before_this is not None and now < self._not_before_this):
            return False
        return now >= renewal_time(self.facts)

    def renew(self, connection: Connection, now: datetime.datetime) -> CertificateFacts:
        """Get a certificate for a new key, put both in force, and dial anew with them."""
        self._not_before_this = now + datetime.timedelta(seconds=RETRY_SECONDS)
        request = new_request(self._site)
        certificate = connection.renew(request.csr)
        fresh = accept_certificate(self._site, request.key, certificate, self._identity.authority, now)
        settle(self._state, fresh)
        self._identity = fresh
        self._not_before_this = None
        connection.renew_with(self.credentials())
        return self.facts


def read_authority(path: Path | None) -> bytes | None:
    """The configured CA bundle; None where there is none."""
    if path is None:
        return None
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            str(path),
            (f"ca_bundle cannot be read: {(error.strerror or 'it cannot be opened').lower()}",),
            hint="Correct [aggregator] ca_bundle, or leave it out to use the authority of the enrolment.",
        ) from error
    certificate_facts(pem)  # a ConfigError where it holds no certificate
    return pem
