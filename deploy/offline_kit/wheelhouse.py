"""The kit's wheels: the role's own two, and every dependency's, exactly as constraints.txt pins them.

The dependencies are the files that the package index publishes, chosen for one Python and one oldest glibc
whatever machine makes the kit. Ours are built from the role's source roots. pip does the work.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.offline_kit.roles import Role
from deploy.offline_kit.wheel_metadata import Distribution, read_wheel
from fedmap.errors import ConfigError
from fedmap.files.digests import file_sha256

OLDEST_GLIBC = (2, 28)
"""RHEL 8, Debian 10, Ubuntu 18.10 and newer; the oldest for which torch has wheels."""
_LEGACY = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}
_CUDA = ("nvidia-", "triton")
_NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


@dataclass(frozen=True)
class Wheel:
    """One file of the wheelhouse."""

    path: Path
    sha256: str
    distribution: Distribution


def is_ours(name: str) -> bool:
    """Our own are the source this kit is made from; everything else is pinned."""
    return name == "fedmap" or name.startswith("fedmap-")


def python_version() -> str:
    """The Python that makes the kit is the one the kit is for."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def platform_tags(machine: str) -> tuple[str, ...]:
    """Every wheel platform that runs with the oldest glibc, newest first."""
    tags = []
    for minor in range(OLDEST_GLIBC[1], 4, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if legacy := _LEGACY.get((2, minor)):
            tags.append(f"{legacy}_{machine}")
    return tuple(tags)


def own_wheels(project: Path, roots: Sequence[str], out: Path, epoch: int) -> None:
    """Builds the wheel of each source root; the same bytes for the same source."""
    with tempfile.TemporaryDirectory() as scratch:
        copies = [Path(scratch) / root for root in roots]
        for root, copy in zip(roots, copies, strict=True):
            shutil.copytree(project / root, copy, ignore=_NOT_SOURCE)
        for path in Path(scratch).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        # With the pinned setuptools of this environment, not with the newest that an index has.
        options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
        _pip("wheel", *options, *map(str, copies), epoch=epoch)


def fetch_dependencies(folder: Path, role: Role, constraints: Path) -> None:
    """Puts the wheels of everything that ours need beside them; no index is asked for ours."""
    tags = [option for tag in platform_tags(platform.machine()) for option in ("--platform", tag)]
    python = ("--python-version", python_version(), "--implementation", "cp")
    extras = {Requirement(role.distribution).name: role.distribution}
    ours = [
        f"{extras.get(wheel.distribution.name, wheel.distribution.name)} @ {wheel.path.resolve().as_uri()}"
        for wheel in read_wheelhouse(folder)
    ]
    _pip(
        *("download", "--dest", str(folder), "--constraint", str(constraints)),
        *("--only-binary", ":all:", *python, *tags, *ours),
    )


def read_wheelhouse(folder: Path) -> tuple[Wheel, ...]:
    """Every wheel, sorted by name."""
    wheels = [Wheel(path, file_sha256(path), read_wheel(path)) for path in folder.glob("*.whl")]
    return tuple(sorted(wheels, key=lambda wheel: wheel.distribution.name))


def check_pins(wheels: tuple[Wheel, ...], constraints: Path) -> None:
    """`ConfigError` where a wheel is not the pinned version, or drags in a graphics card's libraries."""
    lines = constraints.read_text(encoding="utf-8").splitlines()
    pins: dict[str, Requirement] = {
        canonicalize_name(r.name): r for line in lines if (r := _pin(line)) is not None
    }
    problems = []
    for wheel in wheels:
        name, version = wheel.distribution.name, wheel.distribution.version
        if name.startswith(_CUDA):
            problems.append(f"{wheel.path.name} belongs to the CUDA build of torch")
        elif not is_ours(name) and name not in pins:
            problems.append(f"{name} {version} is not pinned")
        elif name in pins and not pins[name].specifier.contains(Version(version), prereleases=True):
            problems.append(f"{name} {version} is not the pinned {pins[name]}")
    if problems:
        raise ConfigError(
            str(constraints),
            tuple(problems),
            hint="Pin each; PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS tells pip where the CPU build of torch is.",
        )


def dependency_graph(wheels: tuple[Wheel, ...], wanted: str) -> Mapping[str, tuple[str, ...]]:
    """name → the names it needs here, from what is wanted on. `ConfigError` where one is missing."""
    by_name = {wheel.distribution.name: wheel.distribution for wheel in wheels}
    graph: dict[str, set[str]] = {name: set() for name in by_name}
    whole = Requirement(wanted)
    waiting, seen = [(whole.name, extra) for extra in ("", *whole.extras)], set()
    problems = []
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for needed in by_name[name].requirements:
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            target = canonicalize_name(needed.name)
            if target not in by_name or not needed.specifier.contains(by_name[target].version, True):
                problems.append(f"{name} needs {needed.name}{needed.specifier}, which is not there")
                continue
            graph[name].add(target)
            waiting += [(target, more) for more in ("", *needed.extras)]
    problems += [f"{name} is needed by nobody" for name in by_name.keys() - {found for found, _ in seen}]
    if problems:
        raise ConfigError(
            "the wheelhouse", tuple(sorted(problems)), hint="Empty the folder and make it again."
        )
    return {name: tuple(sorted(needs - {name})) for name, needs in sorted(graph.items())}


def requirements_text(wheels: tuple[Wheel, ...]) -> str:
    """For `pip install --require-hashes`: each wheel by version and digest."""
    head = "# pip install --no-index --find-links wheelhouse --require-hashes -r requirements.txt\n"
    lines = (
        f"{wheel.distribution.name}=={wheel.distribution.version} --hash=sha256:{wheel.sha256}\n"
        for wheel in wheels
    )
    return head + "".join(lines)


def _pin(line: str) -> Requirement | None:
    text = line.partition("#")[0].strip()
    return Requirement(text) if text else None


def _pip(*arguments: str, epoch: int | None = None) -> None:
    """The pip of this environment; what it says of a failure is shown as it is."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    environment = os.environ if epoch is None else {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"pip {arguments[0]}", tuple(done.stderr.strip().splitlines()[-5:]), hint="Mend what pip names."
        )
