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
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedmap.errors import ConfigError, IntegrityError
from fedmap.files.digests import file_sha256

OLDEST_GLIBC = (2, 28)
"""RHEL 8, Debian 10, Ubuntu 18.10 and newer; the oldest for which torch has wheels."""
_CUDA = ("nvidia-", "triton")
_NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
_LONGEST_LICENCE_NAME = 80
"""Some put the whole text into the field for the name."""
_LICENCE_FILES = ("LICEN", "COPYING", "NOTICE", "AUTHORS", "THIRD")


@dataclass(frozen=True)
class Distribution:
    """One distribution, by its own account: nothing is judged."""

    name: str  # canonical
    version: str
    summary: str
    licences: tuple[str, ...]  # one SPDX expression, or names
    requirements: tuple[Requirement, ...]

    @property
    def is_ours(self) -> bool:
        """Ours are the source that the kit is made from; all others are pinned."""
        return self.name == "fedmap" or self.name.startswith("fedmap-")


@dataclass(frozen=True)
class Wheel:
    """One file of the wheelhouse."""

    path: Path
    sha256: str
    distribution: Distribution
    licences: Mapping[str, bytes]  # texts that it carries, by their path below its dist-info folder


def python_version() -> str:
    """The Python that makes the kit is the one the kit is for."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def platform_tags(machine: str) -> tuple[str, ...]:
    """Every wheel platform that runs with the oldest glibc, newest first; pip knows the older names."""
    major, newest = OLDEST_GLIBC
    names = [*(f"manylinux_{major}_{minor}" for minor in range(newest, 4, -1)), "manylinux2014"]
    return tuple(f"{name}_{machine}" for name in names)


def own_wheels(project: Path, roots: Sequence[str], out: Path, epoch: int) -> None:
    """Builds the wheel of each source root; the same bytes for the same source."""
    with tempfile.TemporaryDirectory() as scratch:
        for root in roots:
            shutil.copytree(project / root, Path(scratch, root), ignore=_NOT_SOURCE)
        for path in Path(scratch).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        # With the pinned setuptools of this environment, not with the newest that an index has.
        options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
        _pip("wheel", *options, *(f"{scratch}/{root}" for root in roots), SOURCE_DATE_EPOCH=str(epoch))


def fetch_dependencies(folder: Path, distribution: str, constraints: Path) -> None:
    """Puts the wheels of everything that ours need beside them; no index is asked for ours."""
    tags = [option for tag in platform_tags(platform.machine()) for option in ("--platform", tag)]
    wanted = {wheel.distribution.name: wheel.path.resolve().as_uri() for wheel in read_wheelhouse(folder)}
    wanted[distribution] = wanted.pop(Requirement(distribution).name)  # with its extras
    _pip(
        *("download", "--dest", str(folder), "--constraint", str(constraints), "--only-binary", ":all:"),
        *("--python-version", python_version(), "--implementation", "cp", *tags),
        *(f"{name} @ {place}" for name, place in wanted.items()),
    )


def parse_metadata(text: bytes, source: str) -> Distribution:
    """`IntegrityError` where the file does not even hold a name and a version."""
    raw, _ = parse_email(text)
    if "name" not in raw or "version" not in raw:
        raise IntegrityError(f"{source}: its METADATA has no name or version", hint="Fetch the wheel again.")
    return Distribution(
        canonicalize_name(raw["name"]),
        raw["version"],
        raw.get("summary", ""),
        _licences(raw.get("license_expression", ""), raw.get("license", ""), raw.get("classifiers", [])),
        tuple(map(Requirement, raw.get("requires_dist", []))),
    )


def read_wheelhouse(folder: Path) -> tuple[Wheel, ...]:
    """Every wheel, sorted by name. `IntegrityError` names one that is torn."""
    wheels = map(_read_wheel, folder.glob("*.whl"))
    return tuple(sorted(wheels, key=lambda wheel: wheel.distribution.name))


def check_pins(wheels: tuple[Wheel, ...], constraints: Path) -> None:
    """`ConfigError` where a wheel is not the pinned version, or drags in a graphics card's libraries."""
    lines = (line.partition("#")[0].strip() for line in constraints.read_text(encoding="utf-8").splitlines())
    pins: dict[str, Requirement] = {
        canonicalize_name(pin.name): pin for pin in map(Requirement, filter(None, lines))
    }
    problems = []
    for wheel in wheels:
        name, version = wheel.distribution.name, wheel.distribution.version
        if name.startswith(_CUDA):
            problems.append(f"{wheel.path.name} belongs to the CUDA build of torch")
        elif name not in pins:
            problems += [] if wheel.distribution.is_ours else [f"{name} {version} is not pinned"]
        elif not pins[name].specifier.contains(version, prereleases=True):
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
    graph: dict[str, set[str]] = {}
    waiting, seen, problems = [("the kit", Requirement(wanted))], set[tuple[str, str]](), []
    while waiting:
        who, needed = waiting.pop()
        found = by_name.get(canonicalize_name(needed.name))
        if found is None or not needed.specifier.contains(found.version, True):
            problems.append(f"{who} needs {needed}, which is not there")
            continue
        names = graph.setdefault(found.name, set())
        for extra in {"", *needed.extras} - {extra for name, extra in seen if name == found.name}:
            seen.add((found.name, extra))
            more = [r for r in found.requirements if r.marker is None or r.marker.evaluate({"extra": extra})]
            names |= {canonicalize_name(requirement.name) for requirement in more} - {found.name}
            waiting += [(found.name, requirement) for requirement in more]
    problems += [f"{name} is needed by nobody" for name in by_name.keys() - graph.keys()]
    if problems:
        raise ConfigError(
            "the wheelhouse", tuple(sorted(problems)), hint="Empty the folder and make it again."
        )
    return {name: tuple(sorted(needs)) for name, needs in sorted(graph.items())}


def requirements_text(wheels: tuple[Wheel, ...]) -> str:
    """For `pip install --require-hashes`: each wheel by version and digest."""
    lines = ["# pip install --no-index --find-links wheelhouse --require-hashes -r requirements.txt"]
    lines += [f"{w.distribution.name}=={w.distribution.version} --hash=sha256:{w.sha256}" for w in wheels]
    return "\n".join([*lines, ""])


def _read_wheel(path: Path) -> Wheel:
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [name.partition(".dist-info/")[::2] for name in archive.namelist()]
            (folder,) = [folder for folder, name in inside if name == "METADATA" and "/" not in folder]
            texts = {
                name.removeprefix("licenses/"): archive.read(f"{folder}.dist-info/{name}")
                for place, name in sorted(inside)
                if place == folder and not name.endswith("/")
                if name.startswith("licenses/") or name.upper().startswith(_LICENCE_FILES)
            }
            metadata = archive.read(f"{folder}.dist-info/METADATA")
    except (zipfile.BadZipFile, ValueError) as error:
        raise IntegrityError(
            f"{path.name}: not a whole wheel", hint="Remove it from pip's cache and fetch it again."
        ) from error
    return Wheel(path, file_sha256(path), parse_metadata(metadata, path.name), texts)


def _licences(expression: str, field: str, classifiers: list[str]) -> tuple[str, ...]:
    """The expression where there is one; otherwise what the classifiers say; otherwise the free field."""
    if expression:
        return (expression,)
    trove = {line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")}
    named = tuple(sorted(trove - {"OSI Approved"}))
    short = field.strip()
    if short and "\n" not in short and len(short) <= _LONGEST_LICENCE_NAME and len(named) != 1:
        return (short,)
    return named


def _pip(*arguments: str, **environment: str) -> None:
    """The pip of this environment; what it says of a failure is shown as it is."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(
            f"pip {arguments[0]}", tuple(done.stderr.strip().splitlines()[-5:]), hint="Mend what pip names."
        )
