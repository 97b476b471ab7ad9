"""What `doctor` looks at on this machine: policy, state folder, disk, data files, ports, identity.

Of the patients' files it asks only whether they can be opened. The network is `network`.
"""

from __future__ import annotations

import datetime
import os
import shutil
import stat
from pathlib import Path

from fedmap.errors import FedmapError, StorageError
from fedmap.files.durable import storage_errors, try_writing
from fedmap.process.addresses import bind_fault, host_of, port_of
from fedmap.process.findings import Finding, failed, failed_by, passed, warned
from fedmap.process.telemetry import is_telemetry
from fedmap.trust.certificates import CertificateFacts, Identity, certificate_facts
from fedmap.trust.pki import fits
from fedmap_site.config import SiteConfig
from fedmap_site.identity.enrolment import renewal_time
from fedmap_site.identity.files import SiteIdentity, open_to_others
from fedmap_site.policy import read_policy

STATE_MISSING = (
    "A site that had enrolled: is the volume mounted there? A new one: `fedmap-site enrol` makes it. The key "
    "is [site] state."
)
LOW_BYTES, ENOUGH_BYTES = 256 << 20, 2 << 30
_SECONDS = 2.0


def check_policy(config: SiteConfig) -> Finding:
    try:
        policy = read_policy(config.policy.file)
    except FedmapError as error:
        return failed_by("policy", error)
    return passed("policy", f"{config.policy.file} is in order; egress is {policy.egress}")


def check_state(folder: Path) -> list[Finding]:
    if not folder.is_dir():
        return [failed("state folder", f"{folder} is not there", STATE_MISSING)]
    try:
        try_writing(folder)
    except FedmapError as error:
        space = [_space(folder)] if os.access(folder, os.X_OK) else []
        return [failed_by("state folder", error), *(one for one in space if one.verdict != "ok")]
    return [_privacy(folder), _space(folder)]


def _privacy(folder: Path) -> Finding:
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return warned(
            "state folder",
            f"other accounts on this machine can look into {folder}",
            f"Close it to them: chmod 700 {folder}",
        )
    return passed("state folder", f"{folder} is this account's alone")


def _space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.1f} GiB free under {folder}"
    if free < LOW_BYTES:
        return failed("disk", text, "Free some space: the agent cannot keep models and answers.")
    if free < ENOUGH_BYTES:
        return warned("disk", text, "Free some space soon: large models take some gigabytes.")
    return passed("disk", text)


def check_data(config: SiteConfig) -> list[Finding]:
    paths = {**config.data.files}
    if config.data.file is not None:
        paths["every other study" if paths else "every study"] = config.data.file
    if not paths:
        return [
            warned(
                "data",
                "no patients' file is named",
                "Name it under [data] file, or by study under [data.files]; without one, tasks fail.",
            )
        ]
    return [_data_file(name, path) for name, path in sorted(paths.items())]


def require_readable(path: Path) -> None:
    """`StorageError` where a patients' file is not there or not this account's to read."""
    with storage_errors(path):
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            path.open("rb").close()


def _data_file(name: str, path: Path) -> Finding:
    try:
        require_readable(path)
    except StorageError as error:
        return failed("data", f"{name}: {error.message}", f"{error.hint} Reading is all the agent does.")
    if path.is_dir():
        return passed("data", f"{name}: {path} is a folder of {sum(1 for _ in path.iterdir())} files")
    return passed("data", f"{name}: {path} can be read ({path.stat().st_size:,} bytes)")


def check_ports(config: SiteConfig) -> list[Finding]:
    """The agent listens only for metrics, and only where that is asked for."""
    listen = config.metrics.listen
    if not listen:
        return []
    host, port = host_of(listen), port_of(listen)
    if is_telemetry(host, port, _SECONDS):
        return [passed("metrics", f"{listen} answers")]
    fault = bind_fault(host, port, "[metrics] listen")
    return [failed_by("metrics", fault)] if fault else [passed("metrics", f"{listen} is free")]


def refuse_taken_port(config: SiteConfig) -> None:
    """`PortError` where the metrics could not be served; before anything heavy is loaded."""
    listen = config.metrics.listen
    fault = bind_fault(host_of(listen), port_of(listen), "[metrics] listen") if listen else None
    if fault is not None:
        raise fault


def check_identity(config: SiteConfig, identity: SiteIdentity, now: datetime.datetime) -> list[Finding]:
    found = []
    exposed = open_to_others(config.site.state)
    if exposed:
        found.append(
            failed(
                "private key",
                f"other accounts on this machine can read {', '.join(exposed)}",
                "Close them (chmod 600); if someone may have looked, ask the operator for a new invitation.",
            )
        )
    try:
        facts = certificate_facts(identity.certificate)
        belongs = fits(identity.key, identity.certificate)
    except FedmapError as error:
        return [*found, failed_by("certificate", error)]
    if not belongs:
        found.append(
            failed(
                "certificate",
                "the private key does not belong to the certificate",
                "Restore the identities folder from one backup, or enrol again with a new invitation.",
            )
        )
    if facts.identity != Identity("site", config.site.name):
        found.append(
            failed(
                "certificate",
                f"the certificate is for {facts.identity or 'nobody in a federation'}, "
                f"the configuration says site {config.site.name}",
                "Correct [site] name, or enrol under this name.",
            )
        )
    found.append(_dates(facts, identity.external, now))
    return found


def _dates(facts: CertificateFacts, external: bool, now: datetime.datetime) -> Finding:
    ends = f"{facts.not_after:%Y-%m-%d %H:%M} UTC"
    if now >= facts.not_after:
        return failed(
            "certificate",
            f"the certificate ended on {ends}, by this machine's clock ({now:%Y-%m-%d %H:%M} UTC)",
            "If the clock is right: ask the operator for a new invitation, then `fedmap-site enrol --again`.",
        )
    if now < facts.not_before:
        return failed(
            "certificate",
            f"the certificate is valid from {facts.not_before:%Y-%m-%d %H:%M} UTC, "
            f"and this machine's clock says {now:%Y-%m-%d %H:%M} UTC",
            "Set this machine's clock; a time service (NTP) keeps it right.",
        )
    if now >= renewal_time(facts):
        how = (
            "have your PKI issue a new one"
            if external
            else "keep `fedmap-site run` running: it renews by itself"
        )
        return warned(
            "certificate", f"the certificate ends on {ends} and should be renewed", f"To renew: {how}."
        )
    return passed("certificate", f"key and certificate fit; valid until {ends}")
