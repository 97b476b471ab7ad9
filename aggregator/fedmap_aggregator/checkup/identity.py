"""What `doctor` finds out about keys and certificates: are they there, do they fit, last and name the host?

Reads files and compares; every fault gets a line of its own, so that one does not hide another. Handshakes
are `machine`.
"""

from __future__ import annotations

import datetime
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedmap.errors import FedmapError
from fedmap.files.durable import read_file
from fedmap.process.findings import Finding, failed, passed, warned
from fedmap.trust.certificates import CertificateFacts, certificate_facts
from fedmap.trust.pki import fits, verify_chain
from fedmap_aggregator.config import NOT_THERE, AggregatorConfig, ExternalPki
from fedmap_aggregator.identity.initialise import names_host, pki_paths
from fedmap_aggregator.identity.profile import OperatorProfile
from fedmap_aggregator.identity.release_key import read_release_key, readable_by_others, release_key_path

_SOON = datetime.timedelta(days=30)
_RESTORE = "restore {path} from the newest backup of the state folder"


@dataclass(frozen=True)
class _Pair:
    """A certificate with its key, and what to do when one of them is no good."""

    name: str
    certificate: Path
    key: Path
    renew: str


def certificates(config: AggregatorConfig, now: datetime.datetime) -> Iterator[Finding]:
    """Those of the aggregator itself: of its own authority, or of an external PKI."""
    external = config.pki.external
    if external is not None:
        yield from _external(external, config, now)
        return
    paths = pki_paths(config)
    if not paths.folder.is_dir():
        yield failed("certificates", f"{paths.folder} is missing", NOT_THERE)
        return
    renewed = "`fedmap-aggregator serve` makes a new one when it starts"
    authority = _Pair("certificate authority", paths.ca, paths.ca_key, _RESTORE.format(path=paths.folder))
    server = _Pair("server certificate", paths.server_certificate, paths.server_key, renewed)
    yield from _pair(authority, now)
    yield from _pair(server, now)
    if paths.server_certificate.is_file() and paths.ca.is_file():
        yield _covers(paths.server_certificate, config, renewed)
        yield _chain("server certificate", read_file(paths.server_certificate), read_file(paths.ca), now)
    if not paths.joining.is_file():
        yield failed("joining file", f"{paths.joining} is missing", _RESTORE.format(path=paths.joining))


def release_key(config: AggregatorConfig) -> Iterator[Finding]:
    """The key that signs bundles: there, whole and private."""
    path = release_key_path(config)
    if not path.is_file():
        yield warned(
            "release key",
            f"{path} is missing",
            "an aggregator that has released nothing makes one when it starts; else "
            + _RESTORE.format(path=path),
        )
        return
    yield passed("release key", f"private; its fingerprint is {read_release_key(path).fingerprint}")


def operator_profile(profile: OperatorProfile, now: datetime.datetime) -> Iterator[Finding]:
    """The profile's certificate: role, key, dates, chain."""
    certificate, add = profile.certificate.encode(), "make a new one: `fedmap-aggregator operator add`"
    facts = certificate_facts(certificate)
    if facts.identity is None or facts.identity.role != "operator":
        yield failed("profile", "its certificate is not an operator's", add)
    if not fits(profile.key.encode(), certificate):
        yield failed("profile", "its key does not belong to its certificate", add)
    yield _dates("profile", facts, now, add)
    yield _chain("profile", certificate, profile.ca.encode(), now)


def _external(external: ExternalPki, config: AggregatorConfig, now: datetime.datetime) -> Iterator[Finding]:
    renew = "have your PKI issue a new one, put it in place, and restart the aggregator"
    pair = _Pair("server certificate", external.server_certificate, external.server_key, renew)
    yield from _pair(pair, now)
    if external.server_certificate.is_file():
        yield _covers(external.server_certificate, config, renew)
    ca = certificate_facts(read_file(external.client_ca))
    yield _dates("client authority", ca, now, "get the authority's current certificate from your PKI")
    if external.server_certificate.is_file():
        leaf = read_file(external.server_certificate)
        chain = _chain("server certificate", leaf, read_file(external.client_ca), now)
        if chain.verdict == "fail":
            chain = warned(
                chain.name,
                "it comes from another authority than client_ca",
                "give the sites that authority's certificate as `ca_bundle`",
            )
        yield chain


def _pair(pair: _Pair, now: datetime.datetime) -> Iterator[Finding]:
    if not pair.certificate.is_file():
        yield failed(pair.name, f"{pair.certificate} is missing", pair.renew)
        return
    yield _dates(pair.name, certificate_facts(read_file(pair.certificate)), now, pair.renew)
    if not pair.key.is_file():
        lost = f"the private key {pair.key} is missing"
        if pair.name == "certificate authority":
            lost += ": no site can enrol or renew any more"
        yield failed(pair.name, lost, pair.renew)
        return
    try:
        together = fits(read_file(pair.key), read_file(pair.certificate))
    except FedmapError as error:
        yield failed(pair.name, f"{pair.key}: {error.message}", pair.renew)
        return
    if not together:
        yield failed(
            pair.name, f"the key {pair.key} does not belong to the certificate {pair.certificate}", pair.renew
        )
    if readable_by_others(pair.key):
        yield Finding(
            pair.name,
            "fail" if stat.S_IMODE(pair.key.stat().st_mode) & 0o007 else "warn",
            f"others on this machine can read the private key {pair.key}",
            f"run `chmod 600 {pair.key}`; whoever read it could use it: see docs/operator.md",
        )
    elif together:
        yield passed(pair.name, "key and certificate belong together, and the key is private")


def _dates(name: str, facts: CertificateFacts, now: datetime.datetime, renew: str) -> Finding:
    if facts.not_after <= now:
        return failed(name, f"it ended on {facts.not_after:%Y-%m-%d %H:%M} UTC", renew)
    if facts.not_before > now:
        begins = f"it is not valid before {facts.not_before:%Y-%m-%d %H:%M} UTC"
        return failed(name, begins, "set this machine's clock right; else " + renew)
    if facts.not_after - now < _SOON:
        return warned(name, f"it ends on {facts.not_after:%Y-%m-%d}", renew)
    return passed(name, f"valid until {facts.not_after:%Y-%m-%d}")


def _covers(certificate: Path, config: AggregatorConfig, renew: str) -> Finding:
    facts, hosts = certificate_facts(read_file(certificate)), config.dialled_hosts
    missing = [host for host in hosts if not names_host(facts.dns_names, host)]
    if not missing:
        return passed("server certificate", f"names {' and '.join(hosts)}, which the sites dial")
    host = missing[0]
    named = ", ".join(facts.dns_names) or "no host at all"
    return failed(
        "server certificate",
        f"it names {named}, and the sites dial {host}: they will not connect",
        f"set server.address to a name it covers, or get one for {host}: {renew}",
    )


def _chain(name: str, certificate: bytes, authority: bytes, now: datetime.datetime) -> Finding:
    """Who issued it. Its dates have a line of their own, and must not look like a stranger's certificate."""
    facts = certificate_facts(certificate)
    within = min(max(now, facts.not_before), facts.not_after)
    try:
        verify_chain(certificate, authority, within)
    except FedmapError as error:
        return failed(name, f"its chain does not hold: {error.message}", error.hint)
    return passed(name, "comes from the federation's authority")
