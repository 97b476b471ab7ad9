"""Whether a chain of certificates leads to a trusted CA: for files, where no TLS handshake has asked it.

The steps, tagged in the code:

1. the leaf is no CA, may sign, and is valid now
2. each issuer is a CA that may sign certificates and is valid now
3. each certificate is signed by the next one, and the last one by the trusted CA
4. no CA stands higher than its path length allows
5. an extension marked critical that is not understood here refuses the chain

Revocation is not asked here: the store knows serials.
"""

from __future__ import annotations

import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fedmap.errors import IntegrityError
from fedmap.trust.certificates import MAX_PEM, UNREADABLE, Identity, identity_of

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
_MAX_INTERMEDIATES = 3
_UNDERSTOOD = (
    x509.BasicConstraints,
    x509.KeyUsage,
    x509.ExtendedKeyUsage,
    x509.SubjectAlternativeName,
)
_HINT = "Ask the sender for a file signed with the certificate that this federation issued."


def verify_chain(cert_pem_chain: bytes, ca_pem: bytes, now: datetime.datetime) -> Identity:
    """The identity of the leaf (first in the PEM); `IntegrityError` names the step that failed."""
    leaf, *intermediates = _certificates(cert_pem_chain, "signer's")
    anchors = _certificates(ca_pem, "trusted")
    if len(intermediates) > _MAX_INTERMEDIATES:
        raise _refused("the certificate chain is too long")
    if _is_ca(leaf):  # (1)
        raise _refused("the signer's certificate is that of a certificate authority")
    usage = _extension(leaf, x509.KeyUsage)
    if usage is not None and not usage.digital_signature:
        raise _refused("the signer's certificate may not sign")
    _check(leaf, "the signer's certificate", now)
    subject = leaf
    for below in range(len(intermediates) + 1):
        if any(_issued(subject, anchor, below, now) for anchor in anchors):
            return identity_of(cert_pem_chain)
        if below == len(intermediates) or not _issued(subject, intermediates[below], below, now):
            break
        subject = intermediates[below]
    raise _refused("the signer's certificate does not come from the trusted certificate authority")


def _issued(subject: x509.Certificate, issuer: x509.Certificate, below: int, now: datetime.datetime) -> bool:
    """Whether `issuer` signed `subject` and was allowed to; `below` counts the CAs under the issuer."""
    try:
        subject.verify_directly_issued_by(issuer)  # (3)
    except (ValueError, TypeError, InvalidSignature):
        return False
    if not _is_ca(issuer):  # (2)
        raise _refused("a certificate in the chain was signed by one that is no certificate authority")
    usage = _extension(issuer, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        raise _refused("a certificate authority in the chain may not sign certificates")
    _check(issuer, "a certificate authority in the chain", now)
    constraints = _extension(issuer, x509.BasicConstraints)
    if constraints is not None and constraints.path_length is not None and below > constraints.path_length:
        raise _refused("a certificate authority in the chain may not have others under it")  # (4)
    return True


def _check(certificate: x509.Certificate, which: str, now: datetime.datetime) -> None:
    """Times and critical extensions of one certificate."""
    if now < certificate.not_valid_before_utc:
        raise _refused(f"{which} is not valid yet (check this machine's clock)")
    if now > certificate.not_valid_after_utc:
        raise _refused(f"{which} has ended")
    try:
        extensions = list(certificate.extensions)
    except UNREADABLE as error:
        raise _refused(f"{which} cannot be read") from error
    if any(found.critical and not isinstance(found.value, _UNDERSTOOD) for found in extensions):  # (5)
        raise _refused(f"{which} has a critical extension that is not understood")


def _is_ca(certificate: x509.Certificate) -> bool:
    constraints = _extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise _refused("a certificate in the chain cannot be read") from error


def _certificates(pem: bytes, which: str) -> list[x509.Certificate]:
    try:
        if len(pem) > MAX_PEM * 4:
            raise ValueError("too large")
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise _refused(f"the {which} certificates cannot be read") from error


def _refused(reason: str) -> IntegrityError:
    return IntegrityError(reason, hint=_HINT)
