"""`doctor`: everything that can stop this site, in the order in which it would, with the exact fault named.

Configuration, then what is on this machine (`site`), the way to the aggregator (`network`), and
what the aggregator thinks of this site. It changes nothing.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from fedmap.errors import ConfigError, FedmapError, NotAllowedError, StorageError
from fedmap.files.durable import FolderLock, try_writing
from fedmap.process.findings import Finding, any_failed, failed, failed_by, passed, warned
from fedmap.process.settings import read_config
from fedmap.trust.certificates import CertificateFacts, certificate_facts
from fedmap_site.checkup.network import check_way
from fedmap_site.checkup.site import (
    STATE_MISSING,
    check_data,
    check_identity,
    check_policy,
    check_ports,
    check_state,
    refuse_taken_port,
)
from fedmap_site.config import NO_CONFIG, SiteConfig
from fedmap_site.identity.enrolment import credentials_of, read_authority
from fedmap_site.identity.files import LOCK, read_identity
from fedmap_site.link.connection import SKEW_SECONDS, Connection, Skew, skew_of
from fedmap_site.link.https import route_of


def examine(path: Path, now: datetime.datetime, version: str) -> list[Finding]:
    """Every check that can be made; one that needs what failed before it is left out."""
    try:
        config = read_config(path, SiteConfig, NO_CONFIG)
    except ConfigError as error:
        return [failed_by("configuration", error)]
    found = [passed("configuration", f"{path} is in order")]
    found.append(check_policy(config))
    state = check_state(config.site.state)
    found += [*state, *check_data(config), *check_ports(config)]
    if any_failed(one for one in state if one.name == "state folder"):
        return found  # there is no identity to go on with
    try:
        identity = read_identity(config.site.state)
        authority = read_authority(config.aggregator.ca_bundle)
        route = route_of(config.aggregator)
    except FedmapError as error:
        return [*found, failed_by("identity", error)]
    found += check_identity(config, identity, now)
    way = check_way(route, authority or identity.authority)
    found += way
    if not any_failed(way):
        with Connection(route, credentials_of(identity, authority)) as connection:
            found += _aggregator(connection, certificate_facts(identity.certificate), now, version)
    return found


def before_running(config: SiteConfig, now: datetime.datetime) -> list[Finding]:
    """What `run` has to say of this machine before it starts; what may mend by itself does not stop it.

    `StorageError` where the state folder is missing, cannot be written or is another agent's, `PortError`
    where the metrics' port is taken, `StateError` without a certificate.
    """
    state = config.site.state
    if not state.is_dir():
        raise StorageError(f"the state folder {state} is not there", hint=STATE_MISSING)
    try_writing(state)
    with FolderLock(state / LOCK):  # whoever holds it has the port too
        refuse_taken_port(config)
    identity = read_identity(state)
    found = [*check_state(state), *check_data(config), *check_identity(config, identity, now)]
    return [finding for finding in found if finding.verdict != "ok"]


def _aggregator(
    connection: Connection, facts: CertificateFacts, now: datetime.datetime, version: str
) -> list[Finding]:
    try:
        greeting = connection.hello(version, seconds=15.0)
    except NotAllowedError as error:
        return [failed("aggregator", f"it does not let this site in: {error.message}", error.hint)]
    except FedmapError as error:
        return [
            failed(
                "aggregator",
                f"TLS works, and the call still fails: {error.message}",
                "The aggregator may have refused this site's certificate. " + error.hint,
            )
        ]
    said = f"version {greeting.software_version} answers; this is a T{greeting.tier} site there"
    return [passed("aggregator", said), _clock(skew_of(greeting.time_unix_ms, now), facts, now)]


def _clock(skew: Skew, facts: CertificateFacts, now: datetime.datetime) -> Finding:
    there = now - datetime.timedelta(seconds=skew.seconds)
    if not facts.not_before <= there <= facts.not_after or not facts.not_before <= now <= facts.not_after:
        return failed(
            "clock",
            f"this machine's clock is {skew}, more than the certificate's dates allow",
            "Set this machine's clock; a time service (NTP) keeps it right.",
        )
    if skew.matters:
        hint = "Set this machine's clock; a time service (NTP) keeps it right."
        return warned("clock", f"this machine's clock is {skew}", hint)
    return passed("clock", f"within {SKEW_SECONDS:g} s of the aggregator's")
