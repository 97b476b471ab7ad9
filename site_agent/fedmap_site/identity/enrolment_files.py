"""Enrolment through an airlock: a request goes out as a signed file, the certificate comes back as one.

The request is signed by the key it asks a certificate for; the answer must be signed by the aggregator, under
the authority whose fingerprint the operator told by another way. The key waits in the state folder meanwhile.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from fedmap.contract.v1 import values
from fedmap.errors import IntegrityError
from fedmap.files.durable import make_folder
from fedmap.trust import drop_files
from fedmap.trust.certificates import CertificateFacts, Identity, certificate_facts
from fedmap_site.identity.enrolment import (
    accept_certificate,
    keep_pending,
    new_request,
    pending_key,
    same_fingerprint,
    settle,
)


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
