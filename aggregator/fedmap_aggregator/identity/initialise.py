"""`init`: the state folder and the identity of a new aggregator, made once and never replaced.

Own authority: CA, server certificate, the public joining certificate and a first operator's profile
appear together or not at all. External PKI: the given files are checked and nothing is made from them. The
release key is apart from both.
Starting the service is `wiring`; giving certificates to sites is `handlers.enrolment`.
"""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import ConfigError, ConflictError, StateError, StorageError
from fedmap.files.durable import make_folder, read_file, storage_errors, sync_folder, write_durably
from fedmap.names import check_operator_name
from fedmap.trust.pki import CertificateAuthority, Identity, certificate_facts, fits, key_pem, new_key
from fedmap_aggregator.config import NOT_THERE, AggregatorConfig, ExternalPki
from fedmap_aggregator.identity.profile import OperatorProfile, profile_text
from fedmap_aggregator.identity.release_key import make_release_key, read_release_key, release_key_path

_CA_DAYS = 3650
_OPERATOR_DAYS = 397
_JOINING_DAYS = _CA_DAYS
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class PkiPaths:
    """The files of the aggregator's own authority. Only ca.pem and joining.pem may be shown to others."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server_certificate(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    @property
    def joining(self) -> Path:
        return self.folder / "joining.pem"

    @property
    def operator(self) -> Path:
        return self.folder / "operator.toml"


@dataclass(frozen=True)
class Initialised:
    """What `init` has made or, with external PKI, found in order."""

    state: Path
    ca_fingerprint: str
    release_fingerprint: str
    joining: Path | None  # None with external PKI
    operator_profile: Path | None  # None with external PKI


def pki_paths(config: AggregatorConfig) -> PkiPaths:
    return PkiPaths(config.server.state / "pki")


def joining_path(config: AggregatorConfig) -> Path:
    """What every invited site is given: CA certificate, joining certificate and its (public) key."""
    return pki_paths(config).joining


def profile_path(config: AggregatorConfig) -> Path:
    """The first operator's profile."""
    return pki_paths(config).operator


def has_identity(config: AggregatorConfig) -> bool:
    """Whether `init` has made one, which happens in one rename. An external PKI is none of its making."""
    return config.pki.external is None and pki_paths(config).folder.exists()


def initialise(config: AggregatorConfig, operator: str, now: datetime.datetime) -> Initialised:
    """Make the state folder and the identity. ConflictError where there is an identity already."""
    check_operator_name(operator)
    state = config.server.state
    make_folder(state)
    _make_private(state)
    if config.pki.external is not None:
        fingerprint = check_external(config.pki.external, config, now)
        return Initialised(state, fingerprint, _release_fingerprint(config), None, None)
    paths = pki_paths(config)
    if has_identity(config):
        raise ConflictError(
            f"{paths.folder} holds the identity of an aggregator already",
            hint="start it with `fedmap-aggregator serve`; a new identity would shut out every enrolled "
            "site, so it is only made in a new state folder",
        )
    draft = PkiPaths(state / "pki.partial")
    shutil.rmtree(draft.folder, ignore_errors=True)  # what an interrupted init left
    make_folder(draft.folder)
    fingerprint = _make_identity(draft, config, now, operator)
    release_fingerprint = _release_fingerprint(config)
    with storage_errors(paths.folder):
        draft.folder.rename(paths.folder)
        sync_folder(state)
    return Initialised(state, fingerprint, release_fingerprint, paths.joining, paths.operator)


def load_authority(config: AggregatorConfig) -> CertificateAuthority | None:
    """The aggregator's own authority; None with external PKI. StorageError before `init`, or off its disk."""
    if config.pki.external is not None:
        return None
    paths = pki_paths(config)
    if not paths.ca.is_file():
        raise StorageError(f"{config.server.state} holds no identity", hint=NOT_THERE)
    return CertificateAuthority.load(read_file(paths.ca), read_file(paths.ca_key))


def add_operator(config: AggregatorConfig, name: str, now: datetime.datetime) -> OperatorProfile:
    """A profile with a new key for one more operator; whoever calls this writes it, with mode 600."""
    check_operator_name(name)
    authority = load_authority(config)
    if authority is None:
        raise StateError(
            "certificates come from an external PKI, so the aggregator cannot issue one",
            hint=f"have your PKI issue a client certificate with the URI SAN fedmap:operator:{name} and "
            "write the profile yourself; docs/operator.md shows one",
        )
    return _profile(authority, config.server.address, name, now)


def issue_server_certificate(
    authority: CertificateAuthority, config: AggregatorConfig, now: datetime.datetime
) -> tuple[bytes, bytes]:
    """A new certificate and key of the server: (certificate PEM, key PEM)."""
    key = new_key()
    hosts = tuple(dict.fromkeys((*config.dialled_hosts, *_LOCAL_HOSTS)))
    certificate = authority.issue(
        key.public_key(), Identity("aggregator"), config.pki.server_days, now, hosts
    )
    return certificate, key_pem(key)


def check_external(external: ExternalPki, config: AggregatorConfig, now: datetime.datetime) -> str:
    """Everything wrong with the given PEM files at once; the CA's fingerprint where nothing is."""
    certificate, key, ca = (
        read_file(path) for path in (external.server_certificate, external.server_key, external.client_ca)
    )
    facts, problems = certificate_facts(certificate), []
    if not fits(key, certificate):
        problems.append("pki.server_key: the key does not belong to server_certificate")
    if facts.not_after <= now:
        problems.append(f"pki.server_certificate: it ended on {facts.not_after:%Y-%m-%d}")
    if facts.not_before > now:
        problems.append(f"pki.server_certificate: it is not valid before {facts.not_before:%Y-%m-%d}")
    for host in config.dialled_hosts:
        if not names_host(facts.dns_names, host):
            named = ", ".join(facts.dns_names) or "no host at all"
            problems.append(f"pki.server_certificate: it names {named}, and sites dial {host}")
    if problems:
        raise ConfigError(
            "external PKI", tuple(problems), hint="have the certificate issued again, or correct the paths"
        )
    return certificate_facts(ca).fingerprint


def names_host(names: tuple[str, ...], host: str) -> bool:
    """Whether a certificate with these names is good for a host, as TLS compares them."""
    try:
        return str(ipaddress.ip_address(host)) in names
    except ValueError:
        wildcard = f"*.{host.partition('.')[2]}"
        return any(name.lower() in (host.lower(), wildcard.lower()) for name in names)


def _release_fingerprint(config: AggregatorConfig) -> str:
    """Of the release key, which is made where there is none; one that was put in place is kept."""
    path = release_key_path(config)
    return (read_release_key(path) if path.exists() else make_release_key(path)).fingerprint


def _make_private(state: Path) -> None:
    with storage_errors(state):
        state.chmod(0o700)


def _make_identity(paths: PkiPaths, config: AggregatorConfig, now: datetime.datetime, operator: str) -> str:
    authority, authority_key = CertificateAuthority.create("FedMAP federation", _CA_DAYS, now)
    write_durably(paths.ca_key, authority_key)
    write_durably(paths.ca, authority.certificate_pem, mode=0o644)
    certificate, key = issue_server_certificate(authority, config, now)
    write_durably(paths.server_key, key)
    write_durably(paths.server_certificate, certificate, mode=0o644)
    write_durably(paths.joining, _joining_file(authority, now), mode=0o644)
    profile = _profile(authority, config.server.address, operator, now)
    write_durably(paths.operator, profile_text(profile).encode())
    return authority.fingerprint


def _joining_file(authority: CertificateAuthority, now: datetime.datetime) -> bytes:
    """CA first, then the joining certificate, then its key. Nothing in it is a secret."""
    key = new_key()
    certificate = authority.issue(key.public_key(), Identity("joining"), _JOINING_DAYS, now)
    return authority.certificate_pem + certificate + key_pem(key)


def _profile(
    authority: CertificateAuthority, address: str, name: str, now: datetime.datetime
) -> OperatorProfile:
    key = new_key()
    certificate = authority.issue(key.public_key(), Identity("operator", name), _OPERATOR_DAYS, now)
    return OperatorProfile(
        name=name,
        address=address,
        ca=authority.certificate_pem.decode(),
        certificate=certificate.decode(),
        key=key_pem(key).decode(),
    )
