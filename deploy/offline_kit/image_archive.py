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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedmap.errors import ConfigError, IntegrityError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_TOLD = re.compile(
    r"etc/os-release|usr/lib/os-release|var/lib/dpkg/status|var/lib/dpkg/status\.d/[^/]+"
    r"|usr/share/doc/[^/]+/copyright|.*\.dist-info/METADATA"
)
_REVISION = "org.opencontainers.image.revision"
_COMPRESSION = 4
"""Half the time of the default for a few per cent more bytes."""


@dataclass(frozen=True, eq=False)
class SavedImage:
    """What an archive says of itself, and the files in it that tell of its parts."""

    reference: str
    identity: str  # the digest of the image's configuration: what engines call its id
    revision: str  # of the source that it was built from, by its label; empty where it has none
    files: dict[str, bytes]  # by path without the leading slash


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


def read_image(path: Path, wanted: Callable[[str], bool] | None = None) -> SavedImage:
    """`IntegrityError` where the archive is not one whole image."""
    keep = wanted or (lambda name: _TOLD.fullmatch(name) is not None)
    try:
        with tarfile.open(path) as archive:
            (entry,) = json.loads(_member(archive, "manifest.json"))
            config = json.loads(_member(archive, entry["Config"]))
            files: dict[str, bytes] = {}
            for layer in entry["Layers"]:
                _apply(archive, layer, files, keep)
    except (tarfile.TarError, KeyError, ValueError, OSError) as error:
        raise IntegrityError(
            f"{path.name}: not a whole image archive", hint="Save the image again; check the disk."
        ) from error
    references = entry.get("RepoTags") or [""]
    digest = PurePosixPath(entry["Config"]).name.removesuffix(".json")
    labels = config.get("config", {}).get("Labels") or {}
    return SavedImage(references[0], f"sha256:{digest}", labels.get(_REVISION, ""), files)


def _apply(
    archive: tarfile.TarFile, layer: str, files: dict[str, bytes], keep: Callable[[str], bool]
) -> None:
    """One layer over what is there: its deletions first, then its files."""
    stream = archive.extractfile(layer)
    if stream is None:
        raise KeyError(layer)
    added: dict[str, bytes] = {}
    with stream, tarfile.open(fileobj=stream, mode="r|*") as members:
        for member in members:
            path = PurePosixPath(member.name.lstrip("/"))
            name = str(path)
            if path.name == _OPAQUE:
                _forget(files, str(path.parent))
            elif path.name.startswith(_WHITEOUT):
                _forget(files, str(path.with_name(path.name.removeprefix(_WHITEOUT))))
            elif member.isfile() and keep(name):
                content = members.extractfile(member)
                added[name] = b"" if content is None else content.read()
    files.update(added)


def _forget(files: dict[str, bytes], removed: str) -> None:
    for name in [name for name in files if name == removed or name.startswith(f"{removed}/")]:
        del files[name]


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(name)
    with stream:
        return stream.read()
