"""The Debian packages of an image, with the licences that their copyright files name.

Read from dpkg's own list. A copyright file that is not machine-readable names no licence here: its text is
in the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_STATUS = re.compile(r"var/lib/dpkg/status(\.d/[^/]+)?")
_MACHINE_READABLE = "copyright-format/1.0"


@dataclass(frozen=True)
class DebianPackage:
    """One installed package."""

    name: str
    version: str
    architecture: str
    licences: tuple[str, ...]  # Debian's short names


@dataclass(frozen=True)
class Release:
    """The distribution that the image was built on."""

    distribution: str  # such as debian
    version: str  # such as 12


def release_of(files: Mapping[str, bytes]) -> Release:
    """From os-release."""
    text = files.get("etc/os-release") or files.get("usr/lib/os-release") or b""
    lines = (line.partition("=") for line in text.decode("utf-8", "replace").splitlines())
    values = {name: value.strip("\"'") for name, _, value in lines}
    return Release(values.get("ID", "linux"), values.get("VERSION_ID", ""))


def debian_packages(files: Mapping[str, bytes]) -> tuple[DebianPackage, ...]:
    """Sorted by name; removed packages of which only settings are left do not count."""
    found = []
    for path in sorted(files):
        if not _STATUS.fullmatch(path) or path.endswith(".md5sums"):
            continue
        for fields in _stanzas(files[path].decode("utf-8", "replace")):
            name = fields.get("package", "")
            if name and fields.get("status", "install ok installed").endswith(" installed"):
                licences = _licences(files.get(f"usr/share/doc/{name}/copyright", b""))
                found.append(
                    DebianPackage(name, fields.get("version", ""), fields.get("architecture", ""), licences)
                )
    return tuple(sorted(found, key=lambda package: package.name))


def _licences(copyright_file: bytes) -> tuple[str, ...]:
    text = copyright_file.decode("utf-8", "replace")
    if _MACHINE_READABLE not in text.partition("\n\n")[0]:
        return ()
    named = {fields["license"] for fields in _stanzas(text) if fields.get("license")}
    return tuple(sorted(named))


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    """Paragraphs of `Field: value`, as Debian writes them; continuation lines are left out."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = (line.partition(":") for line in paragraph.splitlines() if line[:1].strip() and ":" in line)
        found = {name.strip().lower(): value.strip() for name, _, value in fields}
        if found:
            yield found
