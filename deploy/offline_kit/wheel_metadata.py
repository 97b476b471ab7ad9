"""What a Python distribution says of itself: name, version, licences, requirements.

Read from the METADATA of a wheel or of an installed distribution with `packaging`. Nothing is judged here.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedmap.errors import IntegrityError

_LONGEST_LICENCE_NAME = 80
"""Some put the whole text into the field for the name."""
_LICENCE_FILES = ("LICEN", "COPYING", "NOTICE", "AUTHORS", "THIRD")


@dataclass(frozen=True)
class Distribution:
    """One distribution, by its own account."""

    name: str  # canonical
    version: str
    summary: str
    licences: tuple[str, ...]  # one SPDX expression, or names
    requirements: tuple[Requirement, ...]


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
        tuple(Requirement(line) for line in raw.get("requires_dist", [])),
    )


def read_wheel(path: Path) -> Distribution:
    """Of a wheel file."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [
                n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1
            ]
            return parse_metadata(archive.read(name), path.name)
    except (zipfile.BadZipFile, ValueError) as error:
        raise IntegrityError(
            f"{path.name}: not a whole wheel", hint="Remove it from pip's cache and fetch it again."
        ) from error


def licence_texts(path: Path) -> dict[str, bytes]:
    """The licence files that a wheel carries, by the path below its dist-info folder."""
    with zipfile.ZipFile(path) as archive:
        found = {}
        for name in sorted(archive.namelist()):
            folder, _, inner = name.partition("/")
            if not folder.endswith(".dist-info") or not inner or name.endswith("/"):
                continue
            if inner.startswith("licenses/") or inner.upper().startswith(_LICENCE_FILES):
                found[inner.removeprefix("licenses/")] = archive.read(name)
        return found


def _licences(expression: str, field: str, classifiers: list[str]) -> tuple[str, ...]:
    """The expression where there is one; otherwise what the classifiers say; otherwise the free field."""
    if expression:
        return (expression,)
    trove = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    named = tuple(sorted({name for name in trove if name != "OSI Approved"}))
    short = field.strip()
    if short and "\n" not in short and len(short) <= _LONGEST_LICENCE_NAME and len(named) != 1:
        return (short,)
    return named
