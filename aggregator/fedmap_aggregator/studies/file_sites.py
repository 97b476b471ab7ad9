"""Sites that take part by files through an airlock: they give no signs of life, so silence says nothing.

A site enters when a drop file is made for it or taken from it, and leaves with its first call over the
network. Kept in one small file of the state folder, so that a restart does not turn such a site into a
silent one.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from fedmap.errors import StorageError
from fedmap.files.durable import read_file, write_durably


class FileSites:
    """The set, on disk and in memory. Safe to call from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._sites = _read(path)

    def __contains__(self, site: str) -> bool:
        return site in self._sites

    def add(self, site: str) -> None:
        with self._lock:
            self._keep(self._sites | {site})

    def discard(self, site: str) -> None:
        if site in self._sites:
            with self._lock:
                self._keep(self._sites - {site})

    def _keep(self, sites: frozenset[str]) -> None:
        if sites != self._sites:
            write_durably(self._path, json.dumps(sorted(sites)).encode())
            self._sites = sites


def _read(path: Path) -> frozenset[str]:
    if not path.exists():
        return frozenset()
    try:
        sites = json.loads(read_file(path))
    except ValueError as error:
        raise StorageError(
            f"{path} cannot be read", hint="restore it from a backup, or delete it if no site works by files"
        ) from error
    return frozenset(site for site in sites if isinstance(site, str))
