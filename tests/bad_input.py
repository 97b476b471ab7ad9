"""Faults of a machine, really made: a program under another user, a full disk. Skips where not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.aggregator.commands import ROOT
from tests.ran import Ran

OTHER_USER = 12345


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="fedmap-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def as_other_user(folder: Path, module: str, *arguments: str) -> Ran:
    """A program of ours under another user number, as in a container that does not run as root."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can start a program as another user")
    user = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*user, sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "No module named" in done.stderr or "failed to execute" in done.stderr:
        pytest.skip("another user cannot use this Python")
    return Ran(done.args, done.returncode, done.stdout, done.stderr)


@contextmanager
def mounted(folder: Path, mib: int) -> Iterator[Path]:
    """A small file system in memory."""
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    folder.mkdir()
    size = f"size={mib}m,mode=755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> None:
    """To the last byte."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"\0" * 4096):
                pass
        except OSError:
            return
