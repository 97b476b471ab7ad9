"""Puts a kit's files into one folder and that into one archive: the same bytes for the same input.

Everything that is told about the kit (instructions, facts, licences, bills) is made here from what really is
in it. Wheels and image are given; nothing is fetched or built. The archive is not compressed, since wheels
and images are already.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

from deploy.offline_kit import check_kit
from deploy.offline_kit.bill import bill_of_image, bill_of_wheels
from deploy.offline_kit.identity import CHANGED, Identity
from deploy.offline_kit.image import SavedImage, compress, read_image
from deploy.offline_kit.wheels import (
    OLDEST_GLIBC,
    Wheel,
    dependency_graph,
    python_version,
    read_wheelhouse,
    requirements_text,
)
from fedmap.errors import ConfigError
from fedmap.files.digests import file_sha256
from fedmap.files.durable import write_durably

FORMAT = 1
_HERE = Path(__file__).parent
_UNSAFE = re.compile(r"[^\w+./-]", re.ASCII)


def stage(kit: Identity, wheelhouse: Path, docker_archive: Path, folder: Path) -> None:
    """Fills an empty folder; ends with its SHA256SUMS."""
    wheels, image = read_wheelhouse(wheelhouse), read_image(docker_archive)
    graph = dependency_graph(wheels, kit.role.distribution)
    _check_revision(kit, image)
    facts = _facts(kit, image)
    texts = {
        "requirements.txt": requirements_text(wheels),
        "sbom/wheels.cdx.json": bill_of_wheels(kit, wheels, graph),
        "sbom/image.cdx.json": bill_of_image(kit, image),
        "licences/README.md": _table_of_licences(wheels),
        check_kit.FACTS: json.dumps(facts, indent=2) + "\n",
        "INSTALL.md": _instructions(kit, facts),
    }
    copies = {f"wheelhouse/{wheel.path.name}": wheel.path for wheel in wheels}
    copies |= {target: kit.project / origin for target, origin in kit.role.files.items()}
    copies["check_kit.py"] = Path(check_kit.__file__)
    if "compose/docker-compose.yml" in copies:
        texts["compose/.env"] = f"FEDMAP_IMAGE={image.reference}\n"
    contents = {name: text.encode() for name, text in texts.items()}
    for wheel in wheels:
        own = f"licences/{wheel.distribution.name}-{wheel.distribution.version}"
        contents |= {f"{own}/{_UNSAFE.sub('_', name)}": text for name, text in wheel.licences.items()}
    for name in (*contents, *copies, facts["image"]["file"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    for name, origin in copies.items():
        shutil.copyfile(origin, folder / name)
    compress(docker_archive, folder / facts["image"]["file"])
    write_sums(folder)


def write_sums(folder: Path) -> None:
    """In the form that `sha256sum --check` reads."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = (f"{file_sha256(folder / name)}  {name}\n" for name in names if name != check_kit.SUMS)
    (folder / check_kit.SUMS).write_text("".join(lines), encoding="utf-8")


def write_archive(folder: Path, archive: Path, epoch: int) -> str:
    """Packs the folder under its own name, writes ARCHIVE.sha256 beside it, and returns the digest."""

    def nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        mode = 0o755 if entry.isdir() else 0o644
        return entry.replace(uid=0, gid=0, uname="", gname="", mtime=epoch, mode=mode, deep=False)

    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(folder, folder.name, filter=nobodys)  # sorted by name
    partial.replace(archive)
    digest = file_sha256(archive)
    write_durably(archive.with_name(f"{archive.name}.sha256"), f"{digest}  {archive.name}\n".encode(), 0o644)
    return digest


def _check_revision(kit: Identity, image: SavedImage) -> None:
    """`ConfigError` for an image that was built from other source than the wheels beside it."""
    built = kit.revision.removesuffix(CHANGED)
    if image.revision != built:
        raise ConfigError(
            image.reference,
            (f"built from revision {image.revision or 'unknown'}, the wheels from {built}",),
            hint="Build the image again from this source: make images",
        )


def _facts(kit: Identity, image: SavedImage) -> dict[str, Any]:
    file = f"image/{kit.role.program}-{kit.version}.tar.gz"
    return {
        "format": FORMAT,
        "name": kit.name,
        "role": kit.role.name,
        "version": kit.version,
        "revision": kit.revision,
        "python": python_version(),
        "machine": platform.machine(),
        "glibc": ".".join(map(str, OLDEST_GLIBC)),
        "image": {"file": file, "reference": image.reference, "id": image.identity},
    }


def _instructions(kit: Identity, facts: dict[str, Any]) -> str:
    """`@python@`, `@image.file@` and the like become the facts of that name."""
    values = {**facts, **{f"image.{name}": value for name, value in facts["image"].items()}}
    page, whole = (
        (_HERE / f"INSTALL.{name}.md").read_text(encoding="utf-8") for name in (kit.role.name, "whole")
    )
    return re.sub(r"@([\w.]+)@", lambda found: values[found[1]], page.replace("@whole@", whole))


def _table_of_licences(wheels: tuple[Wheel, ...]) -> str:
    lines = [
        "# Licences of the wheels\n",
        "As each distribution states it; the texts that it carries are in the folder of its name. "
        "What the image adds is in sbom/image.cdx.json; the texts are inside the image.\n",
        "| distribution | version | licence | texts here |\n|---|---|---|---|",
    ]
    for wheel in wheels:
        found = wheel.distribution
        stated = ", ".join(found.licences) or "not stated"
        lines.append(f"| {found.name} | {found.version} | {stated} | {len(wheel.licences)} |")
    return "\n".join([*lines, ""])
