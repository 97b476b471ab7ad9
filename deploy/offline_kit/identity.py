"""Which kit it is: whose, and of which source: version, revision and the time that stands in for "now".

The time is the last commit's, or SOURCE_DATE_EPOCH: nothing in a kit depends on when it was made.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from deploy.offline_kit.roles import Role
from deploy.offline_kit.wheels import python_version
from fedmap.errors import ConfigError

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
