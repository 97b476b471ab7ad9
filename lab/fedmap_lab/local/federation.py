"""A federation of real processes on this machine: one aggregator and its sites, driven by their own commands.

Everything goes the way it goes in a hospital: init, invite, enrol, approve, run, over mutual TLS on loopback.
Nothing here imports the services; it only starts `fedmap-aggregator` and `fedmap-site`. Leaving the context
ends every process that was started, also after Ctrl-C or a failure; should this process be killed outright,
Linux ends them (where the program setpriv is installed).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from fedmap.errors import FedmapError, StateError

READY_WITHIN_SECONDS = 60
STOP_WITHIN_SECONDS = 20


@dataclass(frozen=True)
class LocalSite:
    """A site to start: its name, its region, its patients' file, and what it is invited to do."""

    name: str
    region: str
    data: Path
    tier: int = 1


class RunningProgram(Protocol):
    """What a federation asks of a process that it started; `subprocess.Popen` answers it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


@dataclass
class LocalFederation:
    """Folders, configurations and processes of one federation under `directory`."""

    directory: Path
    egress: str = "automatic"
    log_level: str = "info"
    aggregator_toml: str = ""
    """Further sections of aggregator.toml, such as [limits]."""
    site_toml: str = ""
    port: int = 0
    _processes: dict[str, RunningProgram] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def aggregator_folder(self) -> Path:
        return self.directory / "aggregator"

    def site_folder(self, site: str) -> Path:
        return self.directory / "sites" / site

    def initialise(self) -> None:
        """Write the aggregator's configuration and make its authority, certificate and operator."""
        self.port = self.port or free_port()
        folder = self.aggregator_folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "aggregator.toml").write_text(
            f'[server]\naddress = "localhost:{self.port}"\nlisten = "127.0.0.1:{self.port}"\n'
            f'state = "state"\n\n[log]\nlevel = "{self.log_level}"\n\n{self.aggregator_toml}'
        )
        self.aggregator("init")

    def serve(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the aggregator and wait until it listens."""
        process = self._start("aggregator", "fedmap-aggregator", ["serve"], environment)
        for _ in range(READY_WITHIN_SECONDS * 10):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        raise StateError(
            "the aggregator did not start", hint=f"read {self.log_of('aggregator').name}: {self.tail()}"
        )

    def join(self, site: LocalSite) -> None:
        """Invite a site, write its configuration and policy, and enrol it."""
        self.write_site_config(site)
        invitation = json.loads(
            self.aggregator("invite", site.name, "--tier", str(site.tier), "--region", site.region, "--json")
        )
        joining = self.aggregator_folder / "state" / "pki" / "joining.pem"
        secrets = ["--token", invitation["token"], "--ca-fingerprint", invitation["ca_fingerprint"]]
        self.site(site.name, "enrol", "--joining", str(joining), *secrets)

    def write_site_config(self, site: LocalSite) -> None:
        folder = self.site_folder(site.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.toml").write_text(f'egress = "{self.egress}"\nmin_rows = 10\nmin_events = 0\n')
        (folder / "site.toml").write_text(
            f'[site]\nname = "{site.name}"\nstate = "state"\n\n'
            f'[aggregator]\naddress = "localhost:{self.port}"\n\n'
            f'[data]\nfile = "{site.data.resolve()}"\n\n[policy]\nfile = "policy.toml"\n\n'
            f'[log]\nlevel = "{self.log_level}"\n\n{self.site_toml}'
        )

    def run_site(self, site: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a site's agent; it finds its own way from there."""
        self._start(site, "fedmap-site", ["run"], environment)

    def create_study(self, plan: Path, rounds: int, seed: int) -> str:
        """Put a study up for approval; the digest of its terms."""
        options = ["--rounds", str(rounds), "--seed", str(seed), "--json"]
        created = json.loads(self.aggregator("study", "create", str(plan.resolve()), *options))
        return str(created["terms_digest"])

    def aggregator(self, *arguments: str) -> str:
        """Run one command of the operator and give back what it printed."""
        return self._command("aggregator", "fedmap-aggregator", arguments)

    def site(self, name: str, *arguments: str) -> str:
        """Run one command of a site and give back what it printed."""
        return self._command(name, "fedmap-site", arguments)

    def clinic(self, name: str, *arguments: str) -> str:
        """Run one command where there is no enrolment and no configuration: a folder for bundles is all."""
        environment = self.environment(name) | {"FEDMAP_BUNDLES": str(self.site_folder(name) / "bundles")}
        del environment["FEDMAP_SITE_CONFIG"]
        return self._run(self.program(name, "fedmap-site"), arguments, environment)

    def program(self, _name: str, program: str) -> Path:
        """Which program a process of that name runs; all run the one beside this Python."""
        return command_path(program)

    def waiting_for_review(self, site: str) -> list[str]:
        """Ids in a site's outbox that a person has to release."""
        items = json.loads(self.site(site, "outbox", "--json"))
        return [str(item["id"]) for item in items["items"] if item["state"] == "waiting_review"]

    def process(self, name: str) -> RunningProgram:
        return self._processes[name]

    def kill(self, name: str) -> None:
        """kill −9, and wait for the end."""
        self._processes[name].kill()
        self._processes.pop(name).wait()

    def stop(self, name: str) -> int:
        """Ask a process to end, and make it end; its exit code."""
        process = self._processes.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout=STOP_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def stop_all(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name in list(self._processes):
            self.stop(name)

    def log_of(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def tail(self, name: str = "aggregator", lines: int = 5) -> str:
        return "\n".join(self.log_of(name).read_text(errors="replace").splitlines()[-lines:])

    def _start(
        self, name: str, program: str, arguments: Sequence[str], environment: Mapping[str, str] | None
    ) -> RunningProgram:
        log = self.log_of(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        full = {**self.environment(name), **(environment or {})}
        process = self._begun(self.program(name, program), arguments, full, log)
        self._processes[name] = process
        return process

    def _begun(
        self, program: Path, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> RunningProgram:
        """A process that runs; what it prints is added to the log."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*ends_with_parent(), str(program), *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _command(self, name: str, program: str, arguments: Sequence[str]) -> str:
        return self._run(self.program(name, program), arguments, self.environment(name))

    def _run(self, program: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
        done = self._ended(program, arguments, environment)
        if done.returncode != 0:
            raise StateError(
                f"{program.name} {' '.join(arguments[:2])} ended with {done.returncode}: "
                f"{done.stderr.strip()}",
                hint=f"the files are in {self.directory}",
            )
        return done.stdout

    def _ended(
        self, program: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """A process that has ended, with what it printed."""
        return subprocess.run(
            [str(program), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def environment(self, name: str) -> dict[str, str]:
        """One thread per process; each command finds its own configuration."""
        known = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": os.environ.get("COLUMNS", "100")}
        known["FEDMAP_AGGREGATOR_CONFIG"] = str(self.aggregator_folder / "aggregator.toml")
        known["FEDMAP_SITE_CONFIG"] = str(self.site_folder(name) / "site.toml")
        return known


def command_path(program: str) -> Path:
    """The command installed beside this Python, whatever PATH says."""
    path = Path(sys.executable).parent / program
    if not path.exists():
        raise FedmapError(
            f"the command {program} is not installed beside this Python",
            hint="run `make demo`, or in the project's folder: "
            "pip install ./common ./aggregator ./site_agent ./lab",
        )
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ends_with_parent() -> list[str]:
    """What to put before a command so that Linux ends it when this process is gone.

    A program of its own, since running code between fork and exec can hang beside gRPC's threads.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
