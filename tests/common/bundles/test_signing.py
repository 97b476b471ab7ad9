"""Release keys: fingerprints as people type them, and signatures that fit one kind of content only."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from fedmap.errors import ConfigError, FedmapError, IncompatibleError, IntegrityError, NotAllowedError
from fedmap.trust import pki
from fedmap.trust.signing import (
    BUNDLE_KIND,
    bare_fingerprint,
    fingerprint,
    new_release_key,
    parse_signature,
    public_key_of,
    same_fingerprint,
    sign_bytes,
    signature_of,
    verify_bytes,
    verify_signature,
)


def test_fingerprint_is_the_whole_sha256_of_the_raw_key(key: bytes) -> None:
    public = public_key_of(key)
    shown = fingerprint(public)
    assert len(public) == 32
    assert shown.startswith("SHA256:")
    assert bare_fingerprint(shown) == hashlib.sha256(public).hexdigest()


@pytest.mark.parametrize(
    "typed",
    [
        lambda text: text.lower(),
        lambda text: text.replace(":", " "),
        lambda text: text.removeprefix("SHA256:"),
        lambda text: f"  sha-256 {text.removeprefix('SHA256:').replace(':', '')}\n",
        lambda text: text.replace(":", "-"),
    ],
)
def test_fingerprint_typed_from_paper_is_the_same_key(key: bytes, typed: object) -> None:
    shown = fingerprint(public_key_of(key))
    assert callable(typed)
    assert same_fingerprint(shown, typed(shown))


def test_shortened_fingerprint_is_refused(key: bytes) -> None:
    with pytest.raises(ConfigError, match="62 characters"):
        bare_fingerprint(fingerprint(public_key_of(key))[:-2])


def test_fingerprint_with_another_digit_is_another_key(key: bytes) -> None:
    bare = bare_fingerprint(fingerprint(public_key_of(key)))
    assert not same_fingerprint(bare, ("1" if bare[0] == "0" else "0") + bare[1:])


def test_signature_verifies_with_the_library_alone(key: bytes) -> None:
    message = b"anything"
    Ed25519PublicKey.from_public_bytes(public_key_of(key)).verify(sign_bytes(key, message), message)


def test_signature_of_a_list_does_not_fit_a_bundle_with_the_same_bytes(key: bytes) -> None:
    trusted = {fingerprint(public_key_of(key))}
    signed = signature_of(key, b"fedmap-withdrawals-1\n", b"content")
    assert verify_signature(signed, b"fedmap-withdrawals-1\n", b"content", trusted) in trusted
    with pytest.raises(IntegrityError):
        verify_signature(signed, BUNDLE_KIND, b"content", trusted)


def test_signature_by_another_key_is_refused_and_named(key: bytes) -> None:
    other = new_release_key()
    with pytest.raises(NotAllowedError) as refused:
        verify_signature(
            signature_of(other, BUNDLE_KIND, b"x"), BUNDLE_KIND, b"x", {fingerprint(public_key_of(key))}
        )
    assert fingerprint(public_key_of(other)) in refused.value.message


def test_signature_is_refused_where_no_key_is_trusted(key: bytes) -> None:
    with pytest.raises(NotAllowedError, match="no release key is trusted"):
        verify_signature(signature_of(key, BUNDLE_KIND, b"x"), BUNDLE_KIND, b"x", frozenset())


def test_public_key_of_the_wrong_length_is_no_crash() -> None:
    with pytest.raises(IntegrityError):
        verify_bytes(b"short", b"x", bytes(64))


def test_signature_file_reads_back(key: bytes) -> None:
    signed = signature_of(key, BUNDLE_KIND, b"x")
    assert parse_signature(signed.to_json()) == signed


def test_no_bit_of_a_signature_file_can_change_unseen(key: bytes) -> None:
    data = signature_of(key, BUNDLE_KIND, b"x").to_json()
    trusted = {fingerprint(public_key_of(key))}
    for place in range(len(data) * 8):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(FedmapError):
            verify_signature(parse_signature(bytes(changed)), BUNDLE_KIND, b"x", trusted)


def test_other_spelling_of_the_same_signature_is_refused(key: bytes) -> None:
    data = signature_of(key, BUNDLE_KIND, b"x").to_json()
    for other in (data + b"\n", json.dumps(json.loads(data)).encode(), data.decode().encode("utf-16")):
        with pytest.raises(IntegrityError):
            parse_signature(other)


def test_base64_with_stray_bits_is_refused(key: bytes) -> None:
    form = json.loads(signature_of(key, BUNDLE_KIND, b"x").to_json())
    letters = form["key"].rstrip("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    form["key"] = letters[:-1] + alphabet[alphabet.index(letters[-1]) ^ 1] + "="  # decodes to the same bytes
    assert base64.b64decode(form["key"]) == public_key_of(key)
    with pytest.raises(IntegrityError):
        parse_signature(json.dumps(form, sort_keys=True, separators=(",", ":")).encode())


def test_signature_of_a_later_format_asks_for_an_update() -> None:
    with pytest.raises(IncompatibleError) as refused:
        parse_signature(b'{"format":2,"post-quantum":"..."}')
    assert "Update" in refused.value.hint


@given(st.binary(max_size=2000))
def test_any_bytes_are_a_typed_refusal_and_no_crash(data: bytes) -> None:
    with pytest.raises(FedmapError):
        parse_signature(data)


def test_key_of_the_authority_is_no_release_key() -> None:
    with pytest.raises(ConfigError, match="Ed25519"):
        public_key_of(pki.key_pem(pki.new_key()))
    with pytest.raises(ConfigError, match="Ed25519"):
        public_key_of(b"no key at all")
