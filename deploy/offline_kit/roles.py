"""What each kit is for: whose program, which extras, which image, which files go along. A table, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Role:
    """One kind of kit."""

    name: str
    program: str  # the kit's one command
    roots: tuple[str, ...]  # the source roots whose distributions go along, the program's last
    distribution: str  # what is installed, with its extras
    image: str  # the image's name; its tag is the version
    instructions: str  # in this folder
    files: Mapping[str, str]  # place in the project → place in the kit


SITE = Role(
    name="site",
    program="fedmap-site",
    roots=("common", "site_agent"),
    distribution="fedmap-site",
    image="fedmap-site",
    instructions="INSTALL.site.md",
    files=MappingProxyType(
        {
            "LICENSE": "LICENSE",
            "NOTICE": "NOTICE",
            "deploy/site_agent/config.toml": "config/site.toml",
            "deploy/site_agent/config.container.toml": "config/site.container.toml",
            "deploy/site_agent/config.full.toml": "config/site.full.toml",
            "deploy/site_agent/policy.toml": "config/policy.toml",
            "deploy/site_agent/docker-compose.yml": "compose/docker-compose.yml",
            "deploy/site_agent/fedmap-site.service": "systemd/fedmap-site.service",
            "docs/assurance.md": "docs/assurance.md",
            "docs/clinic.md": "docs/clinic.md",
            "docs/errors.md": "docs/errors.md",
            "docs/hospital-it.md": "docs/hospital-it.md",
            "docs/operator.md": "docs/operator.md",
            "docs/security.md": "docs/security.md",
        }
    ),
)
AGGREGATOR = Role(
    name="aggregator",
    program="fedmap-aggregator",
    roots=("common", "aggregator"),
    distribution="fedmap-aggregator[postgres]",
    image="fedmap-aggregator",
    instructions="INSTALL.aggregator.md",
    files=MappingProxyType(
        {
            "LICENSE": "LICENSE",
            "NOTICE": "NOTICE",
            "deploy/aggregator/config.toml": "config/aggregator.toml",
            "deploy/aggregator/config.full.toml": "config/aggregator.full.toml",
            "deploy/aggregator/fedmap-aggregator.service": "systemd/fedmap-aggregator.service",
            "docs/errors.md": "docs/errors.md",
            "docs/operator.md": "docs/operator.md",
            "docs/security.md": "docs/security.md",
        }
    ),
)
ROLES = MappingProxyType({role.name: role for role in (SITE, AGGREGATOR)})
