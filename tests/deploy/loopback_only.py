"""Runs commands on this machine as if it had no network: a namespace with loopback and no other interface.

/opt, /srv, /etc, /var/lib, /run and /dev/shm are private copies or empty, so commands that install things can
be run as a page has them, and nothing of this machine's caches or images is within reach. `WithNetwork` is
the same with the machine's own network, and with what /opt holds beneath. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ENTER = """
for place in srv etc var/lib; do mount --bind "$SCRATCH/$place" "/$place"; done
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cd "$SCRATCH/work"
"""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STORAGE = """[storage]
driver = "overlay"
graphroot = "{scratch}/containers"
runroot = "/run/containers/storage"
"""


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    command: str
    code: int
    out: str
    err: str


class LoopbackOnly:
    """A folder that plays the machine. Each `run` enters a new namespace; what is on disk stays."""

    _namespaces: tuple[str, ...] = ("--net", "--mount")
    _enter = 'ip link set lo up\nmount --bind "$SCRATCH/opt" /opt\n' + _ENTER

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.work = scratch / "work"
        for name in ("work", "opt", "srv", "var/lib", "home", "answers"):
            (scratch / name).mkdir(parents=True)
        shutil.copytree("/etc", scratch / "etc", symlinks=True, ignore_dangling_symlinks=True)
        (scratch / "storage.conf").write_text(_STORAGE.format(scratch=scratch))

    def run(self, commands: list[str], timeout: float) -> list[Outcome]:
        """All in one shell, one after another, whatever each of them says."""
        answers = self.scratch / "answers"
        lines = ["set -u", self._enter]
        for number, command in enumerate(commands):
            name = f'"$SCRATCH/answers/{number}'
            lines.append(f'{{ {command}\n}} >{name}.out" 2>{name}.err"; echo $? >{name}.code"')
        done = subprocess.run(
            ["unshare", *self._namespaces, "bash", "-c", "\n".join(lines)],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [
            Outcome(
                command,
                int((answers / f"{number}.code").read_text()),
                (answers / f"{number}.out").read_text(),
                (answers / f"{number}.err").read_text(),
            )
            for number, command in enumerate(commands)
        ]

    def _environment(self) -> dict[str, str]:
        """Nothing of this shell but where programs are and how the engine is set up."""
        python = Path(sys.base_prefix) / "bin"
        kept = {name: os.environ[name] for name in ("CONTAINERS_CONF",) if name in os.environ}
        return {
            **kept,
            "PATH": f"{python}:{_SYSTEM_PATH}",
            "HOME": str(self.scratch / "home"),
            "LANG": "C.UTF-8",
            "SCRATCH": str(self.scratch),
            "CONTAINERS_STORAGE_CONF": str(self.scratch / "storage.conf"),
        }


class WithNetwork(LoopbackOnly):
    """The same folders, with the network and the settings of this shell: what pip needs to fetch packages.

    Python is the system's: one in somebody's home is closed to the accounts that an installation makes.
    """

    _namespaces = ("--mount",)
    _enter = (
        'mkdir -p "$SCRATCH/beside"\n'
        'mount -t overlay overlay -o "lowerdir=/opt,upperdir=$SCRATCH/opt,workdir=$SCRATCH/beside" /opt\n'
    ) + _ENTER

    def _environment(self) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith("FEDMAP_")}
        return {**known, "PATH": _SYSTEM_PATH, "SCRATCH": str(self.scratch)}
