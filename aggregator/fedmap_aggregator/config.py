"""The aggregator's configuration: one TOML file as one frozen value. Reading it is
`fedmap.process.settings`.

Secrets are never written here, only the paths of the files that hold them. Where the file leaves a key
out, the default below holds; deploy/aggregator/config.full.toml explains every one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, model_validator

from fedmap.process.addresses import HostPort, HostPortOrOff, host_of, port_of
from fedmap.process.settings import LogSection, MetricsSection, OptionalPath, Section

MIB = 1 << 20
NO_CONFIG = (
    "Run this in the folder of aggregator.toml, or give --config FILE (or FEDMAP_AGGREGATOR_CONFIG). A new "
    "aggregator: `fedmap-aggregator init --address HOST:PORT` writes it."
)
NOT_THERE = (
    "An aggregator that was set up before: is the volume with its state folder mounted? Only for a new one: "
    "run `fedmap-aggregator init` first."
)


def _without_password(url: str) -> str:
    try:
        password = urlsplit(url).password
    except ValueError:
        return url  # what is wrong with it is said, without quoting it, where the database is opened
    if password:
        raise ValueError("must not hold a password: put the URL into a file and name that in url_file")
    return url


Whole = Annotated[int, Ge(1)]


class ServerSection(Section):
    """Where the aggregator is found, and where it keeps its state."""

    address: HostPort
    listen: HostPortOrOff = ""
    state: Path
    reflection: bool = False
    stop_seconds: Annotated[float, Gt(0), Le(600)] = 20.0


class DatabaseSection(Section):
    """SQLite in the state folder unless a URL, or a file that holds one, says otherwise."""

    url: Annotated[str, AfterValidator(_without_password)] = ""
    url_file: OptionalPath = None

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        if self.url and self.url_file is not None:
            raise ValueError("give url or url_file, not both")
        return self


@dataclass(frozen=True)
class ExternalPki:
    """PEM files of the trust's own PKI."""

    server_certificate: Path
    server_key: Path
    client_ca: Path


class PkiSection(Section):
    """Whose certificates: the aggregator's own authority, or files from the trust's PKI (all three then)."""

    server_certificate: OptionalPath = None
    server_key: OptionalPath = None
    client_ca: OptionalPath = None
    site_days: Annotated[int, Ge(1), Le(825)] = 90
    server_days: Annotated[int, Ge(1), Le(825)] = 397
    invitation_hours: Annotated[int, Ge(1), Le(24 * 90)] = 72

    @property
    def external(self) -> ExternalPki | None:
        """The three files, where the certificates come from elsewhere."""
        if self.server_certificate is None or self.server_key is None or self.client_ca is None:
            return None
        return ExternalPki(self.server_certificate, self.server_key, self.client_ca)

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        given = [self.server_certificate, self.server_key, self.client_ca]
        if any(path is not None for path in given) and self.external is None:
            raise ValueError(
                "server_certificate, server_key and client_ca go together: give all three or none"
            )
        return self


class LimitsSection(Section):
    """What one caller may ask of the aggregator."""

    max_answer_mib: Whole = 2048
    upload_seconds: Annotated[float, Gt(0)] = 3600.0
    stall_seconds: Annotated[float, Gt(0)] = 30.0
    slowest_kib_per_second: Annotated[float, Ge(0)] = 4.0
    heartbeat_seconds: Annotated[float, Gt(0)] = 20.0
    silent_after_seconds: Annotated[float, Gt(0)] = 120.0
    calls_per_caller: Whole = 8
    polls: Annotated[int, Ge(1), Le(4096)] = 512
    norm_factor: Annotated[float, Gt(1)] = 20.0
    max_log_omega: Annotated[float, Gt(0)] = 1e9
    estimation_minutes: Annotated[float, Gt(0)] = 120.0

    @model_validator(mode="after")
    def _longer_than_a_heartbeat(self) -> Self:
        if self.silent_after_seconds < 3 * self.heartbeat_seconds:
            raise ValueError("silent_after_seconds must be at least three times heartbeat_seconds")
        return self

    @property
    def max_answer_bytes(self) -> int:
        return self.max_answer_mib * MIB


class ReleaseSection(Section):
    """How bundles are signed, and for how long they hold."""

    key: OptionalPath = None
    valid_days: Annotated[int, Ge(1), Le(3650)] = 365


class DownloadsSection(Section):
    """Bundles over HTTPS, for site certificates and one-time links; off unless an address is given."""

    listen: HostPortOrOff = ""
    address: HostPortOrOff = ""
    link_hours: Annotated[int, Ge(1), Le(24 * 90)] = 72

    @model_validator(mode="after")
    def _nothing_without_listen(self) -> Self:
        if self.address and not self.listen:
            raise ValueError("address says how clinics reach downloads, and listen is not given")
        return self


class RetentionSection(Section):
    """What is deleted by itself, and when; nothing unless it is asked for."""

    days_after_end: Annotated[int, Ge(0), Le(36500)] = 0
    keep_rounds: Annotated[int, Ge(0)] = 0


class AggregatorConfig(Section):
    """Everything that the aggregator is told."""

    server: ServerSection
    database: DatabaseSection = DatabaseSection()
    pki: PkiSection = PkiSection()
    limits: LimitsSection = LimitsSection()
    release: ReleaseSection = ReleaseSection()
    downloads: DownloadsSection = DownloadsSection()
    retention: RetentionSection = RetentionSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()

    @property
    def listen(self) -> str:
        """host:port to bind."""
        return self.server.listen or f"0.0.0.0:{port_of(self.server.address)}"

    @property
    def dialled_hosts(self) -> tuple[str, ...]:
        """What the server's certificate must name: the host that sites dial, and that of the downloads."""
        addresses = (self.server.address, self.downloads.address)
        return tuple(dict.fromkeys(host_of(address) for address in addresses if address))
