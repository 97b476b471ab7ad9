"""A real Prometheus for tests: the project's own configuration and rules, with this machine's ports."""

from __future__ import annotations

import http
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmap_lab.local.federation import ends_with_parent, free_port
from tests.deploy.monitoring_files import MONITORING, program

_TENTHS = 10 * 180


@dataclass(frozen=True)
class Prometheus:
    """One running server."""

    port: int
    process: subprocess.Popen[bytes]

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP interface; an error of Prometheus is an AssertionError."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise  # it is not ready yet
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        data = self.ask("query", query=expression)
        found: list[dict[str, Any]] = data["result"]
        return found

    def until(self, happened: Callable[[], object], otherwise: Callable[[], object] = lambda: "") -> None:
        """Looks ten times a second. `otherwise` is what is told when it never happens."""
        for _ in range(_TENTHS):
            try:
                if happened():
                    return
            except urllib.error.URLError:  # it does not listen yet, or is not ready
                pass
            try:
                self.process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("Prometheus ended")
        raise AssertionError(f"it did not happen: {otherwise()}")


@contextmanager
def running_prometheus(folder: Path, aggregator: int, sites: Mapping[str, int]) -> Iterator[Prometheus]:
    """Scrapes these ports every other second, by the files of deploy/monitoring."""
    server, home = program("prometheus"), folder / "monitoring"
    shutil.copytree(MONITORING, home)
    settings = (home / "prometheus.yml").read_text()
    (home / "prometheus.yml").write_text(settings.replace(": 15s", ": 2s").replace(": 10s", ": 2s"))
    (home / "targets" / "aggregator.yml").write_text(f'- targets: ["127.0.0.1:{aggregator}"]\n')
    (home / "targets" / "sites.yml").write_text(
        "".join(
            f'- targets: ["127.0.0.1:{port}"]\n  labels: {{site: {site}}}\n' for site, port in sites.items()
        )
    )
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *ends_with_parent(),
                server,
                f"--config.file={home / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        prometheus = Prometheus(port, process)
        prometheus.until(lambda: prometheus.query("vector(1)"))
        yield prometheus
    finally:
        process.terminate()
        process.wait(timeout=30)
