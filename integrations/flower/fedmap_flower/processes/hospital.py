"""A hospital's node as one command: a SuperNode and, beside it, the executor of the installed app.

The SuperNode dials out to the SuperLink over TLS and proves who it is with its key. Its only open port is on
the loopback interface. Both end together: on SIGTERM, on Ctrl-C, or when the SuperNode gives up.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedmap.errors import UnreachableError
from fedmap_flower.node.client import make_client_app
from fedmap_flower.node.node import hospital_node
from fedmap_flower.processes.commands import (
    command_path,
    ends_with_parent,
    environment,
    free_port,
    stop_group,
)
from fedmap_flower.processes.executor import InstalledAppExecutor


@dataclass(frozen=True)
class HospitalNode:
    """What a hospital decides about its node."""

    superlink: str  # host:port
    root_certificates: Path
    key: Path  # private, OpenSSH form
    site: str
    region: str
    data: Path
    policy: Path
    state: Path
    terms: str  # digest of the terms that the site has agreed to

    def config(self) -> str:
        """As Flower's --node-config wants it."""
        given = {
            "site": self.site,
            "region": self.region,
            "data": str(self.data.absolute()),
            "policy": str(self.policy.absolute()),
            "state": str(self.state.absolute()),
            "terms": self.terms,
        }
        return " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())


def run_node(node: HospitalNode) -> None:
    """Until it is stopped; `UnreachableError` where the SuperNode ends by itself."""
    port = free_port()
    command = [command_path("flower-supernode"), "--superlink", node.superlink]
    command += ["--root-certificates", str(node.root_certificates)]
    command += ["--auth-supernode-private-key", str(node.key), "--node-config", node.config()]
    command += ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*ends_with_parent(), *command], env=environment(), stdin=subprocess.DEVNULL, start_new_session=True
    )
    executor = InstalledAppExecutor(make_client_app(hospital_node), f"127.0.0.1:{port}")
    asked = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        asked.set()
        executor.stop()

    def watch() -> None:
        process.wait()
        executor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    watcher = threading.Thread(target=watch, name="supernode-watch", daemon=True)
    watcher.start()
    try:
        executor.run()
    finally:
        stop_group(process)
        watcher.join()
    if not asked.is_set():
        raise UnreachableError(
            f"the SuperNode ended by itself (exit code {process.returncode})",
            hint="its last lines are above: the address, the certificate, or a key that is not registered",
        )
