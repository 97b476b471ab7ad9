"""A whole Flower deployment on this machine: a SuperLink and SuperNodes as processes, over TLS, with keys.

For the demo, the tests and the benchmark: what a federation does on many machines, with the same commands.
The SuperLink's certificate is of an authority made for the purpose; every SuperNode has a key of its own, and
only registered keys are let in. Leaving the context ends every process that was started. For real federations
the authority and the keys are made where they belong: see docs/flower.md.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedmap.data.cohort_directory import SiteEntry
from fedmap.files.durable import make_folder, write_durably
from fedmap.study.terms import StudyTerms
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import CertificateAuthority, key_pem, new_key
from fedmap_flower.processes.commands import (
    FlowerRun,
    command_path,
    ends_with_parent,
    environment,
    flwr,
    free_port,
    run_to_its_end,
    stop_group,
    wait_until_healthy,
)

SUPERLINK = "fedmap-deployment"
_DAYS = 2
_POLICY = 'egress = "automatic"\nmin_rows = 1\nmin_events = 0\nmin_cell = 5\n'
"""The plan's own limits hold: these are invented or public rows, on one machine."""


@dataclass
class LocalDeployment:
    """Files and processes under `folder`; `home` is the FLWR_HOME whose config.toml knows the SuperLink."""

    folder: Path
    port: int = field(default_factory=free_port)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        make_folder(self.folder)
        make_folder(self.home)
        try:
            self._make_certificates()
            self._start_superlink()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def home(self) -> Path:
        return self.folder / "flwr"

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def register(self, site: str) -> None:
        """A key for a site, and the SuperLink told of its public half."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write_durably(self._key(site), private)
        write_durably(self.folder / f"{site}.pub", public)
        flwr(["supernode", "register", str(self.folder / f"{site}.pub"), SUPERLINK], self.home)

    def start_node(self, site: str, options: Mapping[str, str]) -> None:
        """A hospital's node by its own command; `options` are those that the hospital decides."""
        command = ["fedmap-flower", "node", "--superlink", self.address, "--key", str(self._key(site))]
        command += ["--root-certificates", str(self._ca), "--site", site]
        for name, value in options.items():
            command += [f"--{name}", value]
        self._start(site, command, self.folder / f"flwr-{site}")

    def stop(self, name: str) -> None:
        """End one process and what it started."""
        stop_group(self._processes.pop(name))

    def stop_all(self) -> None:
        for name in reversed(list(self._processes)):
            self.stop(name)

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @property
    def _ca(self) -> Path:
        return self.folder / "ca.pem"

    def _key(self, site: str) -> Path:
        return self.folder / f"{site}.key"

    def _make_certificates(self) -> None:
        now = datetime.now(UTC)
        authority, _ = CertificateAuthority.create("fedmap local deployment", _DAYS, now)
        key = new_key()
        identity = Identity("aggregator", "superlink")
        hosts = ("localhost", "127.0.0.1")
        write_durably(self._ca, authority.certificate_pem)
        write_durably(self.folder / "superlink.key", key_pem(key))
        certificate = authority.issue(key.public_key(), identity, _DAYS, now, hosts)
        write_durably(self.folder / "superlink.pem", certificate)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{SUPERLINK}"\n\n[superlink.{SUPERLINK}]\n'
            f'address = "{self.address}"\nroot-certificates = "{self._ca}"\n'
        )

    def _start_superlink(self) -> None:
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--ssl-ca-certfile", str(self._ca), "--ssl-certfile", str(self.folder / "superlink.pem")]
        command += ["--ssl-keyfile", str(self.folder / "superlink.key"), "--enable-supernode-auth"]
        self._start("superlink", command, self.folder / "flwr-superlink")
        trust = ssl.create_default_context(cafile=str(self._ca))
        process, log = self._processes["superlink"], self.log_of("superlink")
        wait_until_healthy(process, f"https://{self.address}/health", log, trust)

    def _start(self, name: str, command: list[str], home: Path) -> None:
        make_folder(home)
        with self.log_of(name).open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [*ends_with_parent(), command_path(command[0]), *command[1:]],
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def deploy(
    folder: Path, terms: StudyTerms, sites: Sequence[SiteEntry], config: Mapping[str, str | int]
) -> None:
    """A study over a deployment under `folder`, from keys to its end."""
    with LocalDeployment(folder) as deployment:
        policy = folder / "policy.toml"
        policy.write_text(_POLICY)
        for entry in sites:
            deployment.register(entry.site)
            options = {"data": str(entry.path), "policy": str(policy), "terms": terms.digest}
            options |= {"state": str(folder / f"state-{entry.site}"), "region": entry.region}
            deployment.start_node(entry.site, options)
        run_to_its_end(FlowerRun("deployment", SUPERLINK, config), deployment.home)
