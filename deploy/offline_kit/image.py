"""The container image as one file, and the few files inside that say what it is made of.

`podman save` (or docker's) writes the archive. It is read here layer by layer, later layers over earlier
ones, deletions included, so that no container has to be started. Layers are read, never unpacked to disk.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedmap.errors import ConfigError, IntegrityError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_DEBIAN = re.compile(r"var/lib/dpkg/(status|status\.d/[^/]+(?<!\.md5sums))")
_TOLD = re.compile(
    rf"(etc|usr/lib)/os-release|{_DEBIAN.pattern}|usr/share/doc/[^/]+/copyright|.*\.dist-info/METADATA"
)
_REVISION = "org.opencontainers.image.revision"
_COMPRESSION = 4
"""Half the time of the default for a few per cent more bytes."""


@dataclass(frozen=True)
class DebianPackage:
    """One installed package."""

    name: str
    version: str
    architecture: str
    licences: tuple[str, ...]  # Debian's short names


@dataclass(frozen=True, eq=False)
class SavedImage:
    """What an archive says of itself, and the files in it that tell of its parts."""

    reference: str
    identity: str  # the digest of the image's configuration: what engines call its id
    revision: str  # of the source that it was built from, by its label; empty where it has none
    files: dict[str, str]  # by path without the leading slash

    def release(self) -> tuple[str, str]:
        """The distribution that it was built on, such as debian, and its version."""
        text = self.files.get("etc/os-release") or self.files.get("usr/lib/os-release") or ""
        lines = (line.partition("=") for line in text.splitlines())
        values = {name: value.strip("\"'") for name, _, value in lines}
        return values.get("ID", "linux"), values.get("VERSION_ID", "")

    def debian_packages(self) -> tuple[DebianPackage, ...]:
        """Sorted by name; removed packages of which only settings are left do not count.

        A copyright file that is not machine-readable names no licence here: its text is in the image.
        """
        lists = (text for path, text in self.files.items() if _DEBIAN.fullmatch(path))
        found = []
        for fields in (one for text in lists for one in _paragraphs(text)):
            name = fields.get("package")
            if name and fields.get("status", "install ok installed").endswith(" installed"):
                terms = _paragraphs(self.files.get(f"usr/share/doc/{name}/copyright", ""))
                readable = "copyright-format/1.0" in terms[0].get("format", "")
                licences = {one.get("license", "") for one in terms if readable} - {""}
                told = (fields.get("version", ""), fields.get("architecture", ""), tuple(sorted(licences)))
                found.append(DebianPackage(name, *told))
        return tuple(sorted(found, key=lambda package: package.name))


def save_image(engine: str, reference: str, path: Path) -> None:
    """Writes a docker archive. `ConfigError` where there is no engine, or no such image."""
    if shutil.which(engine) is None:
        raise ConfigError(
            "the container engine",
            (f"{engine} is not installed",),
            hint="Install podman, or name another engine: make offline-kit ENGINE=docker",
        )
    options = ["--format", "docker-archive"] if Path(engine).name == "podman" else []
    command = [engine, "save", *options, "--output", str(path), reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise ConfigError(
            f"{engine} save {reference}", tuple(last), hint="Build the image first: make images"
        )


def compress(source: Path, target: Path) -> None:
    """gzip without a time or a name: the same bytes every time. `gzip -dc` and a pipe to `load` undo it."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


def read_image(path: Path) -> SavedImage:
    """`IntegrityError` where the archive is not one whole image."""
    try:
        with tarfile.open(path) as archive:
            (entry,) = json.loads(_member(archive, "manifest.json"))
            config = json.loads(_member(archive, entry["Config"]))
            files: dict[str, str] = {}
            for layer in entry["Layers"]:
                _apply(archive, layer, files)
    except (tarfile.TarError, KeyError, ValueError, OSError) as error:
        raise IntegrityError(
            f"{path.name}: not a whole image archive", hint="Save the image again; check the disk."
        ) from error
    (reference, *_) = entry.get("RepoTags") or [""]
    digest = PurePosixPath(entry["Config"]).name.removesuffix(".json")
    labels = config.get("config", {}).get("Labels") or {}
    return SavedImage(reference, f"sha256:{digest}", labels.get(_REVISION, ""), files)


def _apply(archive: tarfile.TarFile, layer: str, files: dict[str, str]) -> None:
    """One layer over what is there: its deletions first, then its files."""
    added: dict[str, str] = {}
    with tarfile.open(fileobj=archive.extractfile(layer), mode="r|*") as members:
        for member in members:
            path = PurePosixPath(member.name.lstrip("/"))
            if path.name == _OPAQUE:
                _forget(files, path.parent)
            elif path.name.startswith(_WHITEOUT):
                _forget(files, path.with_name(path.name.removeprefix(_WHITEOUT)))
            elif member.isfile() and _TOLD.fullmatch(str(path)):
                added[str(path)] = _member(members, member)
    files.update(added)


def _forget(files: dict[str, str], removed: PurePosixPath) -> None:
    for name in [name for name in files if PurePosixPath(name).is_relative_to(removed)]:
        del files[name]


def _member(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> str:
    stream = archive.extractfile(member)
    if stream is None:
        raise KeyError(member)
    return stream.read().decode("utf-8", "replace")


def _paragraphs(text: str) -> list[dict[str, str]]:
    """`Field: value`, as Debian writes it; lines that go on with a value are left out. Never empty."""
    found = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = (line.partition(":") for line in paragraph.splitlines() if line[:1].strip() and ":" in line)
        found.append({name.strip().lower(): value.strip() for name, _, value in fields})
    return found
