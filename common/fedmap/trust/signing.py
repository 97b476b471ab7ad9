"""Ed25519 signatures of releases: keys, fingerprints for paper, and the small file that carries a signature.

Bytes in, bytes out: no files, no clock. Whose key is trusted is the caller's knowledge. What is signed always
begins with the name of its kind, so that a signature over one kind of thing never fits another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmap.errors import ConfigError, IncompatibleError, IntegrityError, NotAllowedError

BUNDLE_KIND = b"fedmap-bundle-1\n"
FORMAT = 1
MOST_SIGNATURE_BYTES = 1024

_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_GROUP = 4
_PREFIX = re.compile(r"^\s*sha-?256\s*:?", re.IGNORECASE)
_DAMAGED = "Download the file again; do not use this one."
_ASK = (
    "Ask the federation's operator, by telephone or on paper, for the fingerprint of the release key. Use "
    "the file only if the two are the same."
)


@dataclass(frozen=True)
class Signature:
    """A signature with the public key that it claims to be of."""

    public_key: bytes  # raw, 32 bytes
    signature: bytes  # 64 bytes

    def to_json(self) -> bytes:
        """The only spelling of it."""
        form = {"format": FORMAT, "key": _text(self.public_key), "signature": _text(self.signature)}
        return json.dumps(form, sort_keys=True, separators=(",", ":")).encode()


def new_release_key() -> bytes:
    """A fresh private key, PKCS#8 PEM without a password: the file's permissions protect it."""
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_key_of(private_key_pem: bytes) -> bytes:
    """The raw public key, 32 bytes."""
    return _private_key(private_key_pem).public_key().public_bytes_raw()


def fingerprint(public_key: bytes) -> str:
    """SHA-256 of the raw public key, all of it, in groups that people can compare."""
    return _grouped(hashlib.sha256(public_key).hexdigest())


def bare_fingerprint(text: str) -> str:
    """The 64 lower-case hex digits, however they were typed; `ConfigError` where it is no fingerprint.

    All of them are asked for: to a shortened one a second key can be found.
    """
    digits = re.sub(r"[\s:.-]", "", _PREFIX.sub("", text)).lower()
    if re.fullmatch(r"[0-9a-f]{64}", digits, re.ASCII) is None:
        raise ConfigError(
            "fingerprint",
            (f"it has {len(digits)} characters; the fingerprint of a key is 64 digits 0-9 and a-f",),
            hint="Type the whole fingerprint from paper; spaces, colons and capitals do not matter.",
        )
    return digits


def shown_fingerprint(text: str) -> str:
    """As on paper, however it was typed."""
    return _grouped(bare_fingerprint(text))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two spellings mean the same key."""
    return bare_fingerprint(one) == bare_fingerprint(other)


def sign_bytes(private_key_pem: bytes, message: bytes) -> bytes:
    """64 bytes; the same key and message give the same signature."""
    return _private_key(private_key_pem).sign(message)


def verify_bytes(public_key: bytes, message: bytes, signature: bytes) -> None:
    """`IntegrityError` unless this key signed exactly this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise IntegrityError("the signature does not fit the content", hint=_DAMAGED) from None


def signature_of(private_key_pem: bytes, kind: bytes, content: bytes) -> Signature:
    """The signature of content of one kind."""
    return Signature(public_key_of(private_key_pem), sign_bytes(private_key_pem, kind + content))


def verify_signature(signed: Signature, kind: bytes, content: bytes, fingerprints: Collection[str]) -> str:
    """The signer's fingerprint, if it is one of these and the signature fits; else an error."""
    signer = fingerprint(signed.public_key)
    if not fingerprints:
        raise NotAllowedError(f"no release key is trusted here yet; this is signed by {signer}", hint=_ASK)
    if not any(same_fingerprint(signer, trusted) for trusted in fingerprints):
        raise NotAllowedError(f"it is signed by {signer}, and that key is not trusted here", hint=_ASK)
    verify_bytes(signed.public_key, kind + content, signed.signature)
    return signer


def parse_signature(data: bytes) -> Signature:
    """The signature in a signature file. Any other spelling of the same is refused, so no bit can hide."""
    if len(data) > MOST_SIGNATURE_BYTES:
        raise IntegrityError("the signature file is too long", hint=_DAMAGED)
    try:
        form = json.loads(data)
    except (ValueError, RecursionError):
        raise IntegrityError("the signature file cannot be read", hint=_DAMAGED) from None
    match form:
        case {"format": int(other)} if other != FORMAT:
            raise IncompatibleError(
                f"the signature is not of format {FORMAT}, the one that this software reads",
                hint="Update this software. If it is the newest, the file is damaged: download it again.",
            )
        case {"key": str(key), "signature": str(signature)}:
            found = Signature(decoded(key, _KEY_BYTES), decoded(signature, _SIGNATURE_BYTES))
            if found.to_json() == data:
                return found
    raise IntegrityError("the signature file is not in its form", hint=_DAMAGED)


def decoded(text: str, size: int) -> bytes:
    """Base64 of exactly `size` bytes; whether it is the canonical spelling is for the caller to compare."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size:
        raise IntegrityError("the signature file is not in its form", hint=_DAMAGED)
    return data


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _grouped(digits: str) -> str:
    groups = (digits[start : start + _GROUP] for start in range(0, len(digits), _GROUP))
    return "SHA256:" + ":".join(groups).upper()


def _private_key(pem: bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            "release key",
            ("is not an Ed25519 private key in PEM form without a password",),
            hint="Restore the release key from a backup. The authority's key is of another kind.",
        )
    return key
