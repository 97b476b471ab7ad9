"""Parts of an offline kit, small enough to make in a test: four wheels and an image of two layers."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from deploy.offline_kit.identity import SITE, Identity
from deploy.offline_kit.staging import stage

ROOT = Path(__file__).resolve().parents[2]
KIT = Identity(SITE, ROOT, "0.1.0", "0" * 40, 1_700_000_000)
EXTRAS = (("data", "table-reader>=1"), ("other", "never-there"))
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: a library
 with a second line: that is no field

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: LGPL-2.1+

Files: debian/*
License: MIT
"""


def make_wheel(folder: Path, name: str, version: str = "1.0", *lines: str, content: str = "") -> Path:
    """A wheel with one module and one licence text; `lines` go into its METADATA."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines, "", ""])
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        f"{name.replace('-', '_')}.py": content,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": wheel,
        f"{info}/licenses/LICENSE (old)": f"the licence of {name}",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(inner), text)
    return path


def make_wheels(folder: Path) -> Path:
    """Our two, what the library needs for the site's extra, and what that needs."""
    folder.mkdir()
    classifier, apache = "Classifier: License :: ", "License-Expression: Apache-2.0"
    extras = [
        f'Provides-Extra: {extra}\nRequires-Dist: {needed}; extra == "{extra}"' for extra, needed in EXTRAS
    ]
    make_wheel(folder, "fedmap-site", "0.1.0", apache, "Requires-Dist: fedmap[data]==0.1.0")
    make_wheel(folder, "fedmap", "0.1.0", apache, *extras)
    reader = ("License: BSD-3-Clause", "Requires-Dist: Small.Part")
    make_wheel(folder, "table-reader", "1.0", f"{classifier}OSI Approved", *reader)
    small = (f"{classifier}OSI Approved :: MIT License", f"{classifier}Public Domain")
    make_wheel(folder, "small-part", "2.0+cpu", *small)
    return folder


def layer(files: Mapping[str, str]) -> bytes:
    """A tar of plain files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return raw.getvalue()


def make_image(path: Path, *layers: bytes, revision: str = KIT.revision) -> Path:
    """An archive as `podman save --format docker-archive` writes it."""
    labels = {"org.opencontainers.image.revision": revision}
    config = json.dumps({"architecture": "amd64", "config": {"Labels": labels}}).encode()
    names = [f"{hashlib.sha256(content).hexdigest()}.tar" for content in layers]
    identity = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{identity}.json", "RepoTags": ["localhost/fedmap-site:0.1.0"], "Layers": names}]
    members = {**dict(zip(names, layers, strict=True)), f"{identity}.json": config}
    members["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def usual_layers() -> tuple[bytes, bytes]:
    """Debian below, Python above; the upper one takes away a distribution that the lower one had."""
    site = "opt/fedmap/lib/python3.11/site-packages"
    below = {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS,
        "usr/share/doc/libc6/copyright": COPYRIGHT,
        "./usr/lib/python3/dist-packages/pip-23.0.dist-info/METADATA": "Name: pip\nVersion: 23.0\n\n",
        f"{site}/old-1.0.dist-info/METADATA": "Name: old\nVersion: 1.0\n\n",
    }
    above = {
        "usr/lib/python3/dist-packages/.wh.pip-23.0.dist-info": "",
        f"{site}/.wh..wh..opq": "",
        f"{site}/fedmap-0.1.0.dist-info/METADATA": "Name: fedmap\nVersion: 0.1.0\n\n",
        f"{site}/part-2.0.dist-info/METADATA": "Name: part\nVersion: 2.0\n\n",
        f"{site}/tools/_vendor/part-1.0.dist-info/METADATA": "Name: part\nVersion: 1.0\n\n",
    }
    return layer(below), layer(above)


def make_kit(folder: Path, revision: str = KIT.revision) -> Path:
    """An unpacked kit, with its parts beside it."""
    image = make_image(folder / "image.tar", *usual_layers(), revision=revision)
    stage(KIT, make_wheels(folder / "wheels"), image, folder / KIT.name)
    return folder / KIT.name
