"""Puts a kit's files into one folder: what the archive will hold, and nothing else.

Everything that is told about the kit (instructions, facts, licences, bills) is made here from what really is
in it. Wheels and image are given; nothing is fetched or built.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.offline_kit import check_kit
from deploy.offline_kit.bill import Subject, bill_of_image, bill_of_wheels
from deploy.offline_kit.image_archive import SavedImage, compress, read_image
from deploy.offline_kit.kit_archive import write_sums
from deploy.offline_kit.roles import Role
from deploy.offline_kit.source import CHANGED, Source
from deploy.offline_kit.wheel_metadata import licence_texts
from deploy.offline_kit.wheelhouse import (
    OLDEST_GLIBC,
    Wheel,
    dependency_graph,
    python_version,
    read_wheelhouse,
    requirements_text,
)
from fedmap.errors import ConfigError

FORMAT = 1
_HERE = Path(__file__).parent
_UNSAFE = re.compile(r"[^\w+./-]", re.ASCII)


@dataclass(frozen=True)
class Parts:
    """What was fetched and built for one kit."""

    source: Source
    role: Role
    wheels: Path  # folder
    image: Path  # a docker archive


def kit_name(source: Source, role: Role) -> str:
    """Role, version and what it runs on."""
    return f"{role.program}-{source.version}-linux-{platform.machine()}-cp{python_version().replace('.', '')}"


def stage(parts: Parts, folder: Path) -> None:
    """Fills an empty folder; ends with its SHA256SUMS."""
    source, role = parts.source, parts.role
    wheels = read_wheelhouse(parts.wheels)
    graph = dependency_graph(wheels, role.distribution)
    image = read_image(parts.image)
    _check_revision(source, image)
    image_file = f"image/{role.image}-{source.version}.tar.gz"

    for place in ("wheelhouse", "image", "sbom", "licences"):
        (folder / place).mkdir(parents=True)
    for wheel in wheels:
        shutil.copyfile(wheel.path, folder / "wheelhouse" / wheel.path.name)
    _write(folder / "requirements.txt", requirements_text(wheels))
    compress(parts.image, folder / image_file)
    subject = Subject(role.image, source.version, source.epoch)
    _write(folder / "sbom" / "wheels.cdx.json", bill_of_wheels(subject, wheels, graph))
    _write(folder / "sbom" / "image.cdx.json", bill_of_image(subject, image))
    _write_licences(folder / "licences", wheels)
    for origin, target in role.files.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.project / origin, folder / target)
    if (folder / "compose").is_dir():
        _write(folder / "compose" / ".env", f"FEDMAP_IMAGE={image.reference}\n")
    shutil.copyfile(check_kit.__file__, folder / "check_kit.py")
    facts = _facts(source, role, image, image_file)
    _write(folder / check_kit.FACTS, json.dumps(facts, indent=2) + "\n")
    _write(folder / "INSTALL.md", _instructions(source, role, image, image_file))
    write_sums(folder)


def _check_revision(source: Source, image: SavedImage) -> None:
    """`ConfigError` for an image that was built from other source than the wheels beside it."""
    built = source.revision.removesuffix(CHANGED)
    if image.revision != built:
        raise ConfigError(
            image.reference,
            (f"built from revision {image.revision or 'unknown'}, the wheels from {built}",),
            hint="Build the image again from this source: make images",
        )


def _facts(source: Source, role: Role, image: SavedImage, image_file: str) -> dict[str, object]:
    return {
        "format": FORMAT,
        "name": kit_name(source, role),
        "role": role.name,
        "version": source.version,
        "revision": source.revision,
        "python": python_version(),
        "machine": platform.machine(),
        "glibc": ".".join(map(str, OLDEST_GLIBC)),
        "image": {"file": image_file, "reference": image.reference, "id": image.identity},
    }


def _instructions(source: Source, role: Role, image: SavedImage, image_file: str) -> str:
    text = (_HERE / role.instructions).read_text(encoding="utf-8")
    values = {
        "WHOLE": (_HERE / "INSTALL.whole.md").read_text(encoding="utf-8"),
        "KIT": kit_name(source, role),
        "VERSION": source.version,
        "IMAGE": image.reference,
        "IMAGE_ID": image.identity,
        "IMAGE_FILE": image_file,
        "PYTHON": python_version(),
        "GLIBC": ".".join(map(str, OLDEST_GLIBC)),
        "MACHINE": platform.machine(),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _write_licences(folder: Path, wheels: tuple[Wheel, ...]) -> None:
    """Each wheel's own texts, and one table of all."""
    lines = [
        "# Licences of the wheels\n\n",
        "As each distribution states it; the texts that it carries are in the folder of its name. "
        "What the image adds is in sbom/image.cdx.json; the texts are inside the image.\n\n",
        "| distribution | version | licence | texts here |\n|---|---|---|---|\n",
    ]
    for wheel in wheels:
        found = wheel.distribution
        texts = licence_texts(wheel.path)
        for name, text in texts.items():
            target = folder / f"{found.name}-{found.version}" / _UNSAFE.sub("_", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
        stated = ", ".join(found.licences) or "not stated"
        lines.append(f"| {found.name} | {found.version} | {stated} | {len(texts)} |\n")
    _write(folder / "README.md", "".join(lines))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
