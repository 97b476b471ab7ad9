"""What each kit is for: which wheels of ours are in it, which image, which files. A table, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """One kind of kit."""

    name: str
    program: str  # the kit's one command, and its image; an image's tag is the version
    roots: tuple[str, ...]  # the source roots whose wheels go along
    distribution: str  # what is installed, with its extras
    files: Mapping[str, str]  # place in the kit → place in the project


_EVERYWHERE = {
    name: name for name in ("LICENSE", "NOTICE", "docs/errors.md", "docs/operator.md", "docs/security.md")
}
SITE = Role(
    name="site",
    program="fedmap-site",
    roots=("common", "site_agent"),
    distribution="fedmap-site",
    files={
        **_EVERYWHERE,
        "config/site.toml": "deploy/site_agent/config.toml",
        "config/site.container.toml": "deploy/site_agent/config.container.toml",
        "config/site.full.toml": "deploy/site_agent/config.full.toml",
        "config/policy.toml": "deploy/site_agent/policy.toml",
        "compose/docker-compose.yml": "deploy/site_agent/docker-compose.yml",
        "systemd/fedmap-site.service": "deploy/site_agent/fedmap-site.service",
        **{page: page for page in ("docs/assurance.md", "docs/clinic.md", "docs/hospital-it.md")},
    },
)
AGGREGATOR = Role(
    name="aggregator",
    program="fedmap-aggregator",
    roots=("common", "aggregator"),
    distribution="fedmap-aggregator[postgres]",
    files={
        **_EVERYWHERE,
        "config/aggregator.toml": "deploy/aggregator/config.toml",
        "config/aggregator.full.toml": "deploy/aggregator/config.full.toml",
        "systemd/fedmap-aggregator.service": "deploy/aggregator/fedmap-aggregator.service",
    },
)
ROLES = {role.name: role for role in (SITE, AGGREGATOR)}
