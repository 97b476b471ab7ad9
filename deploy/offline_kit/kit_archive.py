"""From staged files to one archive: SHA256SUMS over all of them, then a tar with nothing of this machine.

Names are sorted; owner, time and permissions are set: the same files give the same bytes. The archive is not
compressed, since wheels and images are already.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from deploy.offline_kit.check_kit import SUMS
from fedmap.files.digests import file_sha256
from fedmap.files.durable import write_durably


def write_sums(folder: Path) -> None:
    """In the form that `sha256sum --check` reads."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = (f"{file_sha256(folder / name)}  {name}\n" for name in names if name != SUMS)
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def write_archive(folder: Path, archive: Path, epoch: int) -> str:
    """Packs the folder under its own name, writes ARCHIVE.sha256 beside it, and returns the digest."""
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in (folder, *sorted(folder.rglob("*"))):
            entry = tar.gettarinfo(
                path, f"{folder.name}/{path.relative_to(folder).as_posix()}".removesuffix("/.")
            )
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch
            entry.mode = 0o755 if path.is_dir() else 0o644
            if path.is_dir():
                tar.addfile(entry)
            else:
                with path.open("rb") as content:
                    tar.addfile(entry, content)
    partial.replace(archive)
    digest = file_sha256(archive)
    write_durably(archive.with_name(f"{archive.name}.sha256"), f"{digest}  {archive.name}\n".encode(), 0o644)
    return digest
