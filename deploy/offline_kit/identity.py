"""What each kit is for (wheels, image, files: a table), and of which source a kit is made.

The time that stands in for "now" is the last commit's, or SOURCE_DATE_EPOCH: nothing depends on when a kit
was made.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.offline_kit.wheels import python_version
from fedmap.errors import ConfigError


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


CHANGED = "+changes"


@dataclass(frozen=True)
class Identity:
    """One role's kit, of the project as it is now."""

    role: Role
    project: Path
    version: str
    revision: str  # of git; `+changes` where files differ from it
    epoch: int  # seconds since 1970

    @property
    def name(self) -> str:
        """Role, version and what it runs on."""
        python = python_version().replace(".", "")
        return f"{self.role.program}-{self.version}-linux-{platform.machine()}-cp{python}"


def identify(role: Role, project: Path) -> Identity:
    """`ConfigError` where neither git nor SOURCE_DATE_EPOCH says when the source was made."""
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    revision = _git(project, "rev-parse", "HEAD") or "unknown"
    if _git(project, "status", "--porcelain", "--untracked-files=no"):
        revision += CHANGED
    told = os.environ.get("SOURCE_DATE_EPOCH") or _git(project, "log", "-1", "--format=%ct")
    if not told.isdigit():
        raise ConfigError(
            str(project),
            ("there is no commit that says when the source was made",),
            hint="Make the kit from a git checkout, or set SOURCE_DATE_EPOCH to seconds since 1970.",
        )
    return Identity(role, project, settings["project"]["version"], revision, int(told))


def _git(project: Path, *arguments: str) -> str:
    """Empty where git is not installed or this is no checkout."""
    command = ["git", "-C", str(project), *arguments]
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
