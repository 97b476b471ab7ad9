"""Reading certificates: whom they speak for, how long, under which names. Nothing here trusts or issues.

The identity stands in the certificate's SAN as a URI:

    fedmap:aggregator · fedmap:site:NAME · fedmap:operator:NAME · fedmap:joining
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Literal, get_args

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedmap.errors import ConfigError, NotAllowedError
from fedmap.names import is_site_name, shown

Role = Literal["aggregator", "site", "operator", "joining"]
MAX_PEM = 64 * 1024
UNREADABLE = (ValueError, TypeError, x509.UnsupportedGeneralNameType, x509.DuplicateExtension)
"""What the library raises for certificates and requests that are not what they should be."""

_PREFIX = "fedmap:"
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----\n?", re.DOTALL)
_NAMED: frozenset[Role] = frozenset({"site", "operator"})


@dataclass(frozen=True)
class Identity:
    """Who a certificate speaks for. Only sites and operators have names."""

    role: Role
    name: str = ""

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{_PREFIX}{self.role}:{self.name}" if self.role in _NAMED else f"{_PREFIX}{self.role}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}" if self.name else self.role


@dataclass(frozen=True)
class CertificateFacts:
    """What people ask of a certificate."""

    serial: str  # hex
    identity: Identity | None  # None where it has no usable fedmap: URI
    not_before: datetime.datetime
    not_after: datetime.datetime
    dns_names: tuple[str, ...]  # DNS names and IP addresses
    fingerprint: str


def pem_blocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Every block of a PEM file: what it says to be, and the whole of it."""
    return [(found[1], found[0]) for found in _BLOCK.finditer(data)]


def load_certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM; anything else is a `ConfigError`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(
            "certificate",
            ("is not a certificate in PEM form",),
            hint="Give a file that begins with -----BEGIN CERTIFICATE-----.",
        ) from error


def identity_of(cert_pem: bytes) -> Identity:
    """Whom the (already verified) certificate speaks for: exactly one fedmap: URI, else `NotAllowedError`."""
    hint = "Use the certificate that the federation issued, with one SAN such as URI:fedmap:site:NAME."
    try:
        names = alternative_names(load_certificate(cert_pem).extensions)
    except (ConfigError, *UNREADABLE) as error:
        raise NotAllowedError("the certificate cannot be read", hint=hint) from error
    uris = [name.value for name in names if isinstance(name, x509.UniformResourceIdentifier)]
    ours = [uri for uri in uris if uri.lower().startswith(_PREFIX)]
    if len(ours) != 1:
        raise NotAllowedError(f"the certificate has {len(ours)} fedmap: identities, not one", hint=hint)
    role, _, name = ours[0].removeprefix(_PREFIX).partition(":")
    for known in get_args(Role):
        found = Identity(known, name)
        if role == known and found.uri == ours[0] and (known not in _NAMED or is_site_name(name)):
            return found
    raise NotAllowedError(f"the certificate's identity {shown(ours[0])} is malformed", hint=hint)


def certificate_facts(pem: bytes) -> CertificateFacts:
    """The facts of the first certificate of a PEM."""
    certificate = load_certificate(pem)
    try:
        identity = identity_of(pem)
    except NotAllowedError:
        identity = None
    try:
        names = alternative_names(certificate.extensions)
    except UNREADABLE:
        names = []
    return CertificateFacts(
        serial=serial_of(certificate),
        identity=identity,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        dns_names=tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)),
        fingerprint=fingerprint_of(certificate),
    )


def serial_of(certificate: x509.Certificate) -> str:
    """The serial number in hex, as `openssl x509 -serial` counts but in lower case."""
    return format(certificate.serial_number, "x")


def alternative_names(extensions: x509.Extensions) -> list[x509.GeneralName]:
    """Every name in the SAN; none where there is no SAN."""
    try:
        return list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def fingerprint_of(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, as people compare it."""
    digest = certificate.fingerprint(hashes.SHA256()).hex().upper()
    return "SHA256:" + ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))
