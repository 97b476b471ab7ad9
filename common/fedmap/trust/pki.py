"""Keys, requests and certificates of the federation: EC P-256, issued by its own CA.

Bytes in, bytes out: no files, no clock, no network. Who may do what, and who is revoked, is not asked here.
Reading certificates is in `certificates`, chains are in `chains`; both are offered from here too.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmap.errors import ConfigError, IntegrityError, RejectedError
from fedmap.names import shown
from fedmap.trust.certificates import (
    MAX_PEM,
    UNREADABLE,
    CertificateFacts,
    Identity,
    Role,
    alternative_names,
    certificate_facts,
    fingerprint_of,
    identity_of,
    load_certificate,
)
from fedmap.trust.chains import verify_chain

__all__ = [
    "CertificateAuthority",
    "CertificateFacts",
    "Identity",
    "PrivateKey",
    "PublicKey",
    "Role",
    "certificate_facts",
    "check_csr",
    "fits",
    "identity_of",
    "key_pem",
    "load_certificate",
    "load_key",
    "make_csr",
    "new_key",
    "sign",
    "verify_chain",
    "verify_signature",
    "verify_with_key",
]

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
# A new certificate must already be valid for a peer whose clock is slow.
_BACKDATED = datetime.timedelta(hours=1)


def new_key() -> PrivateKey:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """PKCS#8 without a password: the file's permissions protect it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes) -> PrivateKey:
    """An EC private key; anything else is a `ConfigError`."""
    key = _private_key(pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            "private key",
            ("is not an elliptic-curve key",),
            hint="Use a P-256 key: openssl ecparam -name prime256v1 -genkey -noout",
        )
    return key


def make_csr(key: PrivateKey, identity: Identity) -> bytes:
    """A request for a certificate in this name, signed by its own key."""
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(identity))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=True
        )
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def check_csr(pem: bytes, expected: Identity) -> PublicKey:
    """The key of a request that asks for exactly this identity and is signed by its own key."""
    hint = "Make a new request with `fedmap-site enrol`, under the name that the invitation was made for."
    try:
        if len(pem) > MAX_PEM:
            raise ValueError("too large")
        request = x509.load_pem_x509_csr(pem)
        signed = request.is_signature_valid
        key = request.public_key()
        names = alternative_names(request.extensions)
    except UNREADABLE as error:
        raise RejectedError("the certificate request cannot be read", hint=hint) from error
    if not signed:
        raise RejectedError("the certificate request is not signed by its own key", hint=hint)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
        raise RejectedError(
            "the key of the certificate request is weak or of the wrong kind", hint="Use an EC P-256 key."
        )
    if names != [x509.UniformResourceIdentifier(expected.uri)]:
        raise RejectedError(f"the certificate request asks for another name than {expected.uri}", hint=hint)
    return key


class CertificateAuthority:
    """The federation's own CA: a self-signed certificate and the key that signs the others."""

    def __init__(self, certificate: x509.Certificate, key: PrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str, days: int, now: datetime.datetime) -> tuple[CertificateAuthority, bytes]:
        """A new CA and the PEM of its private key."""
        key = new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            _builder(subject, subject, key.public_key(), now, now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key), key_pem(key)

    @classmethod
    def load(cls, certificate_pem: bytes, private_key_pem: bytes) -> CertificateAuthority:
        """A CA made before; the two parts must belong together."""
        certificate = load_certificate(certificate_pem)
        key = load_key(private_key_pem)
        if key.public_key() != certificate.public_key():
            raise ConfigError(
                "certificate authority",
                ("the private key does not belong to the certificate",),
                hint="Restore both files of the certificate authority from the same backup.",
            )
        return cls(certificate, key)

    @property
    def certificate_pem(self) -> bytes:
        """What the others trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """What people compare over the telephone: SHA256:AB:CD…"""
        return fingerprint_of(self._certificate)

    def issue(
        self,
        request: PublicKey | bytes,
        identity: Identity,
        days: float,
        now: datetime.datetime,
        hosts: Sequence[str] = (),
    ) -> bytes:
        """A certificate for a key, or for a request (PEM) that passes `check_csr`. Never outlives the CA.

        `hosts` are the names and addresses by which a server is dialled.
        """
        key = check_csr(request, identity) if isinstance(request, bytes) else request
        end = min(now + datetime.timedelta(days=days), self._certificate.not_valid_after_utc)
        if end <= now:
            raise ConfigError(
                "certificate authority",
                ("its certificate has ended",),
                hint="Make a new certificate authority and enrol the sites again.",
            )
        serves = identity.role == "aggregator"
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        names = [x509.UniformResourceIdentifier(identity.uri), *map(_host, hosts)]
        issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(_subject(identity), self._certificate.subject, key, now, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def fits(private_key_pem: bytes, cert_pem: bytes) -> bool:
    """Whether key and certificate belong together; any kind of key, for certificates made elsewhere."""
    key, certificate = _private_key(private_key_pem), load_certificate(cert_pem)
    return bool(key.public_key() == certificate.public_key())


def sign(private_key_pem: bytes, message: bytes) -> bytes:
    """ECDSA with SHA-256."""
    return load_key(private_key_pem).sign(message, ec.ECDSA(hashes.SHA256()))


def verify_signature(cert_pem: bytes, message: bytes, signature: bytes) -> None:
    """Whether the key of this certificate signed the message; else `IntegrityError`."""
    verify_with_key(load_certificate(cert_pem).public_key(), message, signature)


def verify_with_key(key: object, message: bytes, signature: bytes) -> None:
    """Whether this public key signed the message; else `IntegrityError`."""
    hint = "Ask the sender for the file again; do not use this one."
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise IntegrityError("the signer's key is not an elliptic-curve key", hint=hint)
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise IntegrityError("the signature does not fit the content", hint=hint) from error


def _private_key(pem: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "private key",
            ("is not a private key in PEM form without a password",),
            hint="Give a file that begins with -----BEGIN PRIVATE KEY-----.",
        ) from error


def _subject(identity: Identity) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name or identity.role)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    now: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(
            "server address",
            (f"{shown(host)} is neither a host name nor an IP address",),
            hint="Write the name that sites dial, in ASCII.",
        ) from error
