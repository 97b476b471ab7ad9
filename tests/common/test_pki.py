"""Certificates: what is issued, what is refused, and chains that someone made up."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmap.errors import ConfigError, IntegrityError, NotAllowedError, RejectedError
from fedmap.trust.pki import (
    CertificateAuthority,
    Identity,
    PrivateKey,
    certificate_facts,
    check_csr,
    fits,
    identity_of,
    key_pem,
    load_certificate,
    load_key,
    make_csr,
    new_key,
    sign,
    verify_chain,
    verify_signature,
)

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
SITE = Identity("site", "addenbrookes")
Change = Callable[[x509.CertificateBuilder], x509.CertificateBuilder]


@pytest.fixture(scope="module")
def authority() -> tuple[CertificateAuthority, bytes]:
    return CertificateAuthority.create("FedMAP test", 3650, NOW)


@pytest.fixture(scope="module")
def ca(authority: tuple[CertificateAuthority, bytes]) -> CertificateAuthority:
    return authority[0]


def issued(ca: CertificateAuthority, identity: Identity = SITE, days: float = 90) -> tuple[PrivateKey, bytes]:
    key = new_key()
    return key, ca.issue(key.public_key(), identity, days, NOW)


def made(
    name: str,
    key: PrivateKey,
    issuer: str,
    issuer_key: PrivateKey,
    *,
    is_ca: bool | None = None,
    path_length: int | None = None,
    uris: tuple[str, ...] = (),
    days: tuple[int, int] = (-1, 90),
    change: Change = lambda builder: builder,
) -> bytes:
    """A certificate as anybody could make one, with whatever in it."""

    def called(common_name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW + days[0] * DAY)
        .not_valid_after(NOW + days[1] * DAY)
    )
    if is_ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(is_ca, path_length), critical=True)
    if uris:
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return change(builder).sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def request(
    names: list[x509.GeneralName], key: PrivateKey | rsa.RSAPrivateKey, *, add: Identity | None = None
) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if add:
        names = [x509.UniformResourceIdentifier(add.uri), *names]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("identity", "uri"),
    [
        (SITE, "fedmap:site:addenbrookes"),
        (Identity("operator", "ann"), "fedmap:operator:ann"),
        (Identity("aggregator"), "fedmap:aggregator"),
        (Identity("joining"), "fedmap:joining"),
    ],
)
def test_each_identity_goes_through_a_certificate_and_comes_back(
    ca: CertificateAuthority, identity: Identity, uri: str
) -> None:
    _, certificate = issued(ca, identity)
    assert identity.uri == uri
    assert identity_of(certificate) == identity
    assert verify_chain(certificate, ca.certificate_pem, NOW) == identity


def test_a_server_certificate_has_the_names_that_are_dialled(ca: CertificateAuthority) -> None:
    key = new_key()
    hosts = ("fedmap.example.org", "10.0.0.1", "[::1]")
    pem = ca.issue(key.public_key(), Identity("aggregator"), 397, NOW, hosts)
    facts = certificate_facts(pem)
    assert facts.dns_names == ("fedmap.example.org", "10.0.0.1", "::1")
    assert facts.identity == Identity("aggregator")
    usage = load_certificate(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    with pytest.raises(ConfigError, match="neither a host name nor an IP"):
        ca.issue(key.public_key(), Identity("aggregator"), 397, NOW, ("bücher.example",))


def test_a_client_certificate_is_no_server_and_no_authority(ca: CertificateAuthority) -> None:
    extensions = load_certificate(issued(ca)[1]).extensions
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_certificates_are_valid_for_a_slow_clock_and_never_outlive_the_authority() -> None:
    ca, _ = CertificateAuthority.create("short", 10, NOW)
    facts = certificate_facts(issued(ca, days=90)[1])
    assert facts.not_before == NOW - datetime.timedelta(hours=1)
    assert facts.not_after == NOW + 10 * DAY
    with pytest.raises(ConfigError, match="has ended"):
        ca.issue(new_key().public_key(), SITE, 90, NOW + 11 * DAY)


def test_an_authority_is_loaded_again_and_signs_for_the_same_trust(
    authority: tuple[CertificateAuthority, bytes],
) -> None:
    ca, key = authority
    again = CertificateAuthority.load(ca.certificate_pem, key)
    assert again.fingerprint == ca.fingerprint
    assert verify_chain(issued(again)[1], ca.certificate_pem, NOW) == SITE
    with pytest.raises(ConfigError, match="does not belong"):
        CertificateAuthority.load(ca.certificate_pem, key_pem(new_key()))


def test_the_fingerprint_is_the_one_that_openssl_shows(ca: CertificateAuthority) -> None:
    digest = load_certificate(ca.certificate_pem).fingerprint(hashes.SHA256())
    assert ca.fingerprint == "SHA256:" + digest.hex(":").upper()
    assert certificate_facts(ca.certificate_pem).fingerprint == ca.fingerprint
    assert certificate_facts(ca.certificate_pem).identity is None


def test_a_request_is_issued_with_its_own_key(ca: CertificateAuthority) -> None:
    key = new_key()
    certificate = ca.issue(make_csr(key, SITE), SITE, 90, NOW)
    assert fits(key_pem(key), certificate)
    assert not fits(key_pem(new_key()), certificate)


def test_a_request_for_a_foreign_name_is_refused(ca: CertificateAuthority) -> None:
    csr = make_csr(new_key(), Identity("site", "papworth"))
    with pytest.raises(RejectedError, match="another name"):
        check_csr(csr, SITE)
    with pytest.raises(RejectedError, match="another name"):
        ca.issue(csr, SITE, 90, NOW)
    with pytest.raises(RejectedError, match="another name"):
        check_csr(make_csr(new_key(), Identity("operator", SITE.name)), SITE)


@pytest.mark.parametrize(
    "extra",
    [
        x509.DNSName("aggregator.example.org"),
        x509.UniformResourceIdentifier("fedmap:operator:mallory"),
        x509.RFC822Name("a@example.org"),
    ],
)
def test_a_request_that_smuggles_in_a_second_name_is_refused(extra: x509.GeneralName) -> None:
    with pytest.raises(RejectedError, match="another name"):
        check_csr(request([extra], new_key(), add=SITE), SITE)


def test_a_request_without_any_name_is_refused() -> None:
    with pytest.raises(RejectedError, match="another name"):
        check_csr(request([], new_key()), SITE)


def test_a_request_not_signed_by_its_own_key_is_refused() -> None:
    der = bytearray(
        x509.load_pem_x509_csr(make_csr(new_key(), SITE)).public_bytes(serialization.Encoding.DER)
    )
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(RejectedError, match="not signed by its own key"):
        check_csr(forged, SITE)


def test_a_request_with_a_weak_or_foreign_key_is_refused() -> None:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(SITE.uri)]
    with pytest.raises(RejectedError, match="weak or of the wrong kind"):
        check_csr(request(names, ec.generate_private_key(ec.SECP224R1())), SITE)
    with pytest.raises(RejectedError, match="weak or of the wrong kind"):
        check_csr(request(names, rsa.generate_private_key(65537, 2048)), SITE)


@pytest.mark.parametrize(
    "pem", [b"", b"junk", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", b"x" * 100_000]
)
def test_a_request_that_cannot_be_read_is_refused(pem: bytes) -> None:
    with pytest.raises(RejectedError, match="cannot be read"):
        check_csr(pem, SITE)


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("https://example.org",),
        ("fedmap:site:a", "fedmap:operator:b"),
        ("fedmap:site:a", "FEDMAP:operator:b"),
        ("fedmap:site:",),
        ("fedmap:site",),
        ("fedmap:site:A",),
        ("fedmap:site:a:b",),
        ("fedmap:site:../etc",),
        ("fedmap:site:a\n",),
        ("fedmap:root",),
        ("fedmap:aggregator:x",),
        ("fedmap:joining:",),
        ("FEDMAP:operator:b",),
        ("fedmap:",),
    ],
)
def test_a_certificate_without_exactly_one_sound_identity_is_nobody(uris: tuple[str, ...]) -> None:
    key = new_key()
    pem = made("x", key, "x", key, uris=uris)
    with pytest.raises(NotAllowedError):
        identity_of(pem)
    assert certificate_facts(pem).identity is None


def test_what_is_no_certificate_is_nobody() -> None:
    with pytest.raises(NotAllowedError, match="cannot be read"):
        identity_of(b"junk")
    with pytest.raises(ConfigError, match="not a certificate"):
        certificate_facts(b"junk")


def test_a_foreign_uri_beside_ours_does_no_harm() -> None:
    key = new_key()
    assert identity_of(made("x", key, "x", key, uris=("spiffe://x/y", SITE.uri))) == SITE


def test_a_certificate_of_a_foreign_authority_is_refused(ca: CertificateAuthority) -> None:
    foreign, _ = CertificateAuthority.create("FedMAP test", 3650, NOW)  # even under the same name
    _, certificate = issued(foreign)
    for chain in (certificate, certificate + foreign.certificate_pem, certificate + ca.certificate_pem):
        with pytest.raises(IntegrityError, match="does not come from the trusted"):
            verify_chain(chain, ca.certificate_pem, NOW)


@pytest.mark.parametrize(("days", "words"), [(-2, "not valid yet"), (91, "has ended")])
def test_a_certificate_out_of_its_time_is_refused(ca: CertificateAuthority, days: int, words: str) -> None:
    with pytest.raises(IntegrityError, match=words):
        verify_chain(issued(ca)[1], ca.certificate_pem, NOW + days * DAY)


def test_the_authority_itself_signs_no_files(ca: CertificateAuthority) -> None:
    with pytest.raises(IntegrityError, match="certificate authority"):
        verify_chain(ca.certificate_pem, ca.certificate_pem, NOW)


def test_a_site_cannot_play_authority_for_another(ca: CertificateAuthority) -> None:
    site_key, site = issued(ca)
    forged = made("victim", new_key(), SITE.name, site_key, is_ca=False, uris=("fedmap:site:victim",))
    with pytest.raises(IntegrityError, match="no certificate authority"):
        verify_chain(forged + site, ca.certificate_pem, NOW)


def test_a_forged_intermediate_is_refused(ca: CertificateAuthority) -> None:
    middle_key, leaf_key = new_key(), new_key()
    middle = made("middle", middle_key, "FedMAP test", middle_key, is_ca=True)  # not signed by the trusted CA
    leaf = made("leaf", leaf_key, "middle", middle_key, is_ca=False, uris=(SITE.uri,))
    with pytest.raises(IntegrityError, match="does not come from the trusted"):
        verify_chain(leaf + middle, ca.certificate_pem, NOW)


class Tree:
    """An outside PKI: root → middle → leaf, with one thing changed at a time."""

    def __init__(self) -> None:
        self.root_key, self.middle_key, self.leaf_key = new_key(), new_key(), new_key()

    def root(self, path_length: int | None = None) -> bytes:
        return made("root", self.root_key, "root", self.root_key, is_ca=True, path_length=path_length)

    def middle(
        self, *, is_ca: bool = True, days: tuple[int, int] = (-1, 90), change: Change = lambda b: b
    ) -> bytes:
        return made("middle", self.middle_key, "root", self.root_key, is_ca=is_ca, days=days, change=change)

    def leaf(self, *, is_ca: bool | None = None, change: Change = lambda b: b) -> bytes:
        return made(
            "leaf", self.leaf_key, "middle", self.middle_key, is_ca=is_ca, uris=(SITE.uri,), change=change
        )


def usage(*, signs: bool, certifies: bool) -> Change:
    extension = x509.KeyUsage(signs, False, False, False, False, certifies, False, False, False)
    return lambda builder: builder.add_extension(extension, critical=True)


def unknown_critical(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    extension = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")
    return builder.add_extension(extension, critical=True)


def test_an_intermediate_that_verifies_is_accepted() -> None:
    tree = Tree()
    assert verify_chain(tree.leaf() + tree.middle(), tree.root(), NOW) == SITE
    assert verify_chain(tree.leaf() + tree.middle(), tree.root(path_length=1), NOW) == SITE
    both = issued(CertificateAuthority.create("other", 10, NOW)[0])[1] + tree.root()
    assert verify_chain(tree.leaf() + tree.middle(), both, NOW) == SITE


def test_chains_with_one_thing_wrong_are_refused() -> None:
    tree = Tree()
    root, middle, leaf = tree.root(), tree.middle(), tree.leaf()
    no_certificates = tree.middle(change=usage(signs=True, certifies=False))
    cases = {
        "does not come from": (leaf, root),
        "no certificate authority": (leaf + tree.middle(is_ca=False), root),
        "has ended": (leaf + tree.middle(days=(-10, -1)), root),
        "others under it": (leaf + middle, tree.root(path_length=0)),
        "may not sign certificates": (leaf + no_certificates, root),
        "certificate may not sign\n": (tree.leaf(change=usage(signs=False, certifies=False)) + middle, root),
        "is that of a certificate authority": (tree.leaf(is_ca=True) + middle, root),
        "not understood": (leaf + tree.middle(change=unknown_critical), root),
        "too long": (leaf + middle * 4, root),
        "signer's certificates cannot be read": (b"junk", root),
        "trusted certificates cannot be read": (leaf, b""),
    }
    for words, (chain, trusted) in cases.items():
        with pytest.raises(IntegrityError, match=words):
            verify_chain(chain, trusted, NOW)
    with pytest.raises(IntegrityError, match="not understood"):
        verify_chain(tree.leaf(change=unknown_critical) + middle, root, NOW)


def test_a_signature_fits_its_message_and_its_certificate_only(ca: CertificateAuthority) -> None:
    key, certificate = issued(ca)
    signature = sign(key_pem(key), b"message")
    verify_signature(certificate, b"message", signature)
    for pem, message, given in (
        (certificate, b"other", signature),
        (issued(ca)[1], b"message", signature),
        (certificate, b"message", b""),
        (certificate, b"message", signature[:-1]),
    ):
        with pytest.raises(IntegrityError, match="does not fit"):
            verify_signature(pem, message, given)


def test_keys_go_through_pem_and_other_texts_are_refused() -> None:
    key = new_key()
    assert load_key(key_pem(key)).public_key() == key.public_key()
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    for pem in (b"", b"junk", encrypted):
        with pytest.raises(ConfigError, match="without a password"):
            load_key(pem)
    foreign = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(ConfigError, match="elliptic-curve"):
        load_key(foreign)
