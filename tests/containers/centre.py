"""An aggregator in its container, on a network of its own that leads nowhere else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.engine import IMAGES, Engine, wait_until

READY_WITHIN_SECONDS = 300.0  # a start takes seconds, but the machine may be busy
CONFIG = '[server]\naddress = "aggregator:8443"\nstate = "/var/lib/fedmap/state"\n'


@dataclass(frozen=True)
class Centre:
    engine: Engine
    prefix: str
    folder: Path
    more: str = ""  # further sections of aggregator.toml; the files that they name are in folder/centre

    @property
    def network(self) -> str:
        return f"{self.prefix}-network"

    @property
    def container(self) -> str:
        return f"{self.prefix}-aggregator"

    @property
    def volume(self) -> str:
        return f"{self.prefix}-centre"

    def command(self, *arguments: str) -> Any:
        """What a command of the operator answers, given inside the container."""
        done = self.engine.run("exec", self.container, "fedmap-aggregator", *arguments, "--json")
        return json.loads(done.stdout)

    def start(self) -> None:
        options = ["--network", self.network, "--network-alias", "aggregator", "--name", self.container]
        self.engine.run("run", "--detach", *options, *self._setting(), IMAGES["aggregator"])
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        wait_until(
            lambda: self.engine.healthy(self.container),
            READY_WITHIN_SECONDS,
            "healthy aggregator",
            lambda: self.engine.logs(self.container),
        )

    def initialise(self) -> None:
        self.engine.run("network", "create", "--internal", self.network)
        self.engine.run("volume", "create", self.volume)
        config = self.folder / "centre"
        config.mkdir(exist_ok=True)
        (config / "aggregator.toml").write_text(CONFIG + self.more)
        for path in (config, config / "aggregator.toml"):
            path.chmod(0o755)
        self.engine.run("run", "--rm", "--network", "none", *self._setting(), IMAGES["aggregator"], "init")

    def new_study(self, plan: str) -> str:
        """A study of every site that is enrolled, up for approval. The digest of its terms."""
        (self.folder / "centre" / "plan.toml").write_text(plan)
        created = self.command("study", "create", "/etc/fedmap/plan.toml")
        return str(created["terms_digest"])

    def joining_file(self) -> str:
        shown = ("python", "-c", "print(open('/var/lib/fedmap/state/pki/joining.pem').read())")
        return self.engine.run("exec", self.container, *shown).stdout

    def remove(self) -> None:
        """Everything, also what a failed start left."""
        self.engine.try_run("rm", "--force", self.container)
        self.engine.try_run("network", "rm", "--force", self.network)
        self.engine.try_run("volume", "rm", "--force", self.volume)

    def _setting(self) -> list[str]:
        mounts = [f"{self.volume}:/var/lib/fedmap", f"{self.folder / 'centre'}:/etc/fedmap:ro"]
        return [*self.engine.hardened, *(part for mount in mounts for part in ("--volume", mount))]


@contextmanager
def running_centre(engine: Engine, folder: Path, more: str = "") -> Iterator[Centre]:
    centre = Centre(engine, f"fedmap-test-{uuid.uuid4().hex[:8]}", folder, more)
    try:
        centre.initialise()
        centre.start()
        yield centre
    finally:
        centre.remove()
