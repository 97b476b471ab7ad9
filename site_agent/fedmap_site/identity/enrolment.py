"""How the site gets its certificate: over the network, from the trust's own PKI, or by file; and renews it.

The private key is made here and never leaves. The authority is believed only when its fingerprint is the one
that the operator told by another way. Whatever comes back must fit the key and carry this site's name before
it is written. Through an airlock a request goes out as a file, signed by the key it asks a
certificate for, and the key waits in the state folder. The audit log is the caller's.

It renews itself at two thirds of its life, with a new key, while the old one still works: the new ones are
checked, put in force in one rename, and the connection is dialled anew. A failure costs nothing but another
attempt. A certificate of the trust's own PKI is renewed there, not here.
"""

from __future__ import annotations

import datetime
import hmac
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from fedmap.contract.v1 import values
from fedmap.errors import ConfigError, IntegrityError, NotAllowedError, RejectedError, StateError
from fedmap.files.durable import make_folder, read_file, write_durably
from fedmap.transport.client import Credentials
from fedmap.trust import drop_files
from fedmap.trust.certificates import CertificateFacts, Identity, certificate_facts, pem_blocks
from fedmap.trust.pki import fits, key_pem, make_csr, new_key, verify_chain
from fedmap_site.identity.files import SiteIdentity, is_enrolled, read_identity, write_identity
from fedmap_site.link.connection import Connection

PENDING = "enrolment"
_ASK_AGAIN = "Ask the operator to send the joining file and the fingerprint again, each by its own way."


@dataclass(frozen=True)
class JoiningFile:
    """The federation's public joining certificate with its key, and the authority to trust."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


def read_joining(path: Path, fingerprint: str) -> JoiningFile:
    """Reads the operator's joining file; its authority must have the given fingerprint."""
    source = str(path)
    blocks = pem_blocks(read_file(path))
    keys = [pem for kind, pem in blocks if kind.endswith(b"PRIVATE KEY")]
    certificates = [pem for kind, pem in blocks if kind == b"CERTIFICATE"]
    joining = [pem for pem in certificates if _identity(pem) == Identity("joining")]
    authorities = [pem for pem in certificates if pem not in joining]
    if len(keys) != 1 or len(joining) != 1 or not authorities:
        raise ConfigError(
            source,
            ("is not a joining file: it needs the joining certificate, its key and the authority",),
            hint="Use the file joining.pem as the operator sent it.",
        )
    trusted = [
        pem for pem in authorities if same_fingerprint(certificate_facts(pem).fingerprint, fingerprint)
    ]
    if not trusted:
        raise IntegrityError(
            f"{source}: its authority has not the fingerprint that was given",
            hint=f"Do not go on: the file or the fingerprint is not from your federation. {_ASK_AGAIN}",
        )
    return JoiningFile(joining[0], keys[0], trusted[0])


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are the same, however they were written down."""
    return hmac.compare_digest(_bare(one), _bare(other))


def refuse_second_enrolment(state: Path, again: bool) -> None:
    """A site that has an identity keeps it, unless it was told otherwise."""
    if is_enrolled(state) and not again:
        raise StateError(
            "this site has a certificate already",
            hint="It renews itself. Only after a lost or stolen key: give --again, with a new invitation.",
        )


@dataclass(frozen=True)
class Request:
    """A fresh key and the request for its certificate."""

    key: bytes = field(repr=False)
    csr: bytes


def new_request(site: str) -> Request:
    key = new_key()
    return Request(key_pem(key), make_csr(key, Identity("site", site)))


def accept_certificate(
    site: str,
    key: bytes,
    certificate: bytes,
    authority: bytes,
    now: datetime.datetime,
    *,
    external: bool = False,
) -> SiteIdentity:
    """An identity that holds together: key, name, dates and chain; else an error that names the fault."""
    if not fits(key, certificate):
        raise RejectedError(
            "the certificate does not belong to the key",
            hint="Use the certificate that was made for this site's own request.",
        )
    found = verify_chain(certificate, authority, now)
    if found != Identity("site", site):
        raise NotAllowedError(
            f"the certificate is for {found}, this agent is site {site}",
            hint="Correct [site] name in the configuration, or ask for a certificate for this site.",
        )
    return SiteIdentity(key, certificate, authority, external)


def adopt_external(
    state: Path, site: str, certificate: Path, key: Path, authority: Path, now: datetime.datetime
) -> CertificateFacts:
    """Take over a certificate and key of the trust's own PKI."""
    identity = accept_certificate(
        site, read_file(key), read_file(certificate), read_file(authority), now, external=True
    )
    return settle(state, identity)


def settle(state: Path, identity: SiteIdentity) -> CertificateFacts:
    """Put an accepted identity in force, and forget what led to it."""
    write_identity(state, identity)
    shutil.rmtree(state / PENDING, ignore_errors=True)
    return certificate_facts(identity.certificate)


def keep_pending(state: Path, request: Request) -> None:
    """Keep the key of a request that travels as a file, until its certificate comes back."""
    make_folder(state / PENDING)
    write_durably(state / PENDING / "key.pem", request.key)


def pending_key(state: Path) -> bytes:
    path = state / PENDING / "key.pem"
    if not path.exists():
        raise StateError(
            "no request of this site is waiting for a certificate",
            hint="Make one with `fedmap-site enrol --offline-request FILE --token TOKEN`.",
        )
    return read_file(path)


def _identity(pem: bytes) -> Identity | None:
    return certificate_facts(pem).identity


def _bare(fingerprint: str) -> str:
    text = fingerprint.strip().upper()
    for prefix in ("SHA256:", "SHA-256:", "SHA256 FINGERPRINT="):
        text = text.removeprefix(prefix)
    return re.sub(r"[^0-9A-F]", "", text)


def write_request(state: Path, site: str, token: str, out: Path, now: datetime.datetime) -> None:
    """Make a key and write the request for its certificate; a later request replaces an earlier one."""
    make_folder(state)
    request = new_request(site)
    keep_pending(state, request)
    asked = values.DropEnrolment(token, request.csr)
    drop = values.Drop(site=site, made_unix_ms=int(now.timestamp() * 1000), enrolment=asked)
    drop_files.write(out, drop, None, request.key, b"")


def take_certificate(
    state: Path, site: str, file: Path, fingerprint: str, now: datetime.datetime
) -> CertificateFacts:
    """Put the certificate of a drop file in force, if it is the aggregator's answer to our request."""
    key = pending_key(state)
    found = drop_files.read(file)
    content = found.drop.certificate
    if content is None or found.drop.site != site:
        raise IntegrityError(
            f"{file}: it does not hold a certificate for {site}",
            hint="Use the file that `fedmap-aggregator round import` made from this site's request.",
        )
    if not same_fingerprint(certificate_facts(content.ca_pem).fingerprint, fingerprint):
        raise IntegrityError(
            f"{file}: its authority has not the fingerprint that was given",
            hint="Do not go on: the file or the fingerprint is not from your federation. Ask the operator.",
        )
    found.verify(content.ca_pem, now, Identity("aggregator"))
    return settle(state, accept_certificate(site, key, content.certificate_pem, content.ca_pem, now))


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
