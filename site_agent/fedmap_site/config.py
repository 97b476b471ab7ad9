"""The site agent's configuration: one TOML file as one frozen value. Reading it is `fedmap.process.settings`.

The site's policy is a file of its own, since another person answers for it. No secret is written here. Where
the file leaves a key out, the default below holds; deploy/site_agent/config.full.toml explains every one.
A new site's first file, short and complete enough to enrol, is written here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, Field, model_validator

from fedmap.files.durable import make_folder, write_durably
from fedmap.names import is_site_name
from fedmap.process.addresses import HostPort, HostPortOrOff, is_address, port_of
from fedmap.process.settings import LogSection, MetricsSection, OptionalPath, Section, parse_config

NO_CONFIG = (
    "Run this in the folder of site.toml, or give --config FILE (or FEDMAP_SITE_CONFIG). A new site: "
    "`fedmap-site enrol` with --site NAME and --address HOST:PORT writes it."
)


def _site_name(text: str) -> str:
    if not is_site_name(text):
        raise ValueError("must be lower-case letters, digits, - and _, as in the invitation")
    return text


def _dialled(text: str) -> str:
    if port_of(text) == 0:
        raise ValueError("must be host:port, and the port not 0")
    return text


def _proxy(text: str) -> str:
    if text and (not text.startswith("http://") or not is_address(text[7:].rstrip("/"))):
        raise ValueError("must be http://host:port; a proxy with a password goes into a file, see proxy_file")
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("must be a network such as 10.1.0.0/16, or one address") from None
    return text


class SiteSection(Section):
    """Who this site is, and where its agent keeps its state."""

    name: Annotated[str, AfterValidator(_site_name)]
    state: Path


class AggregatorSection(Section):
    """The one host and port that the agent dials, and how."""

    address: Annotated[HostPort, AfterValidator(_dialled)]
    proxy: Annotated[str, AfterValidator(_proxy)] = ""
    proxy_file: OptionalPath = None
    ca_bundle: OptionalPath = None

    @model_validator(mode="after")
    def _one_proxy(self) -> Self:
        if self.proxy and self.proxy_file is not None:
            raise ValueError("proxy and proxy_file are both given; keep one")
        return self


class DataSection(Section):
    """Where the patients' files are. The agent reads them and never writes them."""

    file: OptionalPath = None
    files: Mapping[str, Path] = Field(default_factory=dict)

    def path_of(self, study: str) -> Path | None:
        """The file of a study, or None where the configuration names none."""
        return self.files.get(study, self.file)


class PolicySection(Section):
    """What the site allows, in a file of its own; without a readable one nothing is computed or sent."""

    file: Path = Path("policy.toml")


class AgentSection(Section):
    """How often the agent asks, and how patient it is."""

    poll_seconds: Annotated[float, Ge(1), Le(60)] = 25.0
    heartbeat_seconds: Annotated[float, Ge(1), Le(600)] = 15.0
    longest_backoff_seconds: Annotated[float, Gt(0), Le(3600)] = 60.0


class RetentionSection(Section):
    """What is deleted by itself, and when; nothing unless it is asked for."""

    days_after_end: Annotated[int, Ge(0), Le(36500)] = 0


class ServeSection(Section):
    """`fedmap-site serve-bundles`: verified bundles over HTTPS, for clinics inside the own network."""

    listen: HostPortOrOff = ""
    certificate: OptionalPath = None
    key: OptionalPath = None
    allow: tuple[Annotated[str, AfterValidator(_network)], ...] = ()


class BundlesSection(Section):
    """Released models that this site keeps, and hands on where it wants to."""

    folder: OptionalPath = None
    serve: ServeSection = ServeSection()


class SiteConfig(Section):
    """Everything that the agent is told."""

    site: SiteSection
    aggregator: AggregatorSection
    data: DataSection = DataSection()
    policy: PolicySection = PolicySection()
    agent: AgentSection = AgentSection()
    retention: RetentionSection = RetentionSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    bundles: BundlesSection = BundlesSection()


CONFIG = """\
# fedmap-site. Relative paths start at the folder of this file; config.full.toml has every option.

[site]
name = "{site}"
state = "state"

[aggregator]
address = "{address}"

[data]
# The patients' file: read, never written, never sent.
file = ""

[policy]
file = "policy.toml"
"""
POLICY = """\
# What this site allows. Of two floors, the study's and this one, the larger holds.

# review: a named person releases every answer. automatic: it leaves when it has passed the checks.
egress = "review"
min_rows = 50
min_events = 5
min_cell = 10
"""


def write_first_config(path: Path, site: str, address: str) -> tuple[Path, ...]:
    """Write the files that are missing; which those were. A faulty name or address is a ConfigError."""
    text = CONFIG.format(site=site.replace('"', ""), address=address.replace('"', ""))
    config = parse_config(text, str(path), path.absolute().parent, SiteConfig)
    make_folder(path.absolute().parent)
    written = [path]
    if not config.policy.file.exists():
        write_durably(config.policy.file, POLICY.encode(), mode=0o644)
        written.append(config.policy.file)
    write_durably(path, text.encode(), mode=0o644)
    return tuple(written)
