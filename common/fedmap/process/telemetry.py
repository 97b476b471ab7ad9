"""Metrics and health over HTTP: /metrics for Prometheus, /healthz (the process runs), /readyz (it can
work).

For a monitoring network, so plain HTTP and off by default. Serves nothing else, and no content of a study.
Two gauges are read at the moment of a scrape: a table replaced as a whole, so that a site or an outbox
state that is gone is gone from the next scrape too, and the space of a disk.
"""

from __future__ import annotations

import io
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fedmap.process.addresses import port_error, split_listen

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_REQUEST_SECONDS = 10.0


def ask(host: str, port: int, page: str, seconds: float) -> tuple[int, str]:
    """What an endpoint of this kind answers. OSError or HTTPException where none does."""
    connection = HTTPConnection(host or "127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.status, answer.read(1024).decode("utf-8", "replace").strip()
    finally:
        connection.close()


def is_telemetry(host: str, port: int, seconds: float) -> bool:
    """Whether an endpoint of this kind answers there already."""
    try:
        return ask(host, port, "/healthz", seconds) == (200, "ok")
    except (OSError, HTTPException):
        return False


class TelemetryServer:
    """The HTTP endpoint in a thread of its own. `ready` says what is missing, or None when all is well."""

    def __init__(self, listen: str, registry: CollectorRegistry, ready: Callable[[], str | None]) -> None:
        self._listen = listen
        self._host, self._port = split_listen(listen)
        self._metrics = make_wsgi_app(registry)
        self._ready = ready
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is really used, also when 0 was asked for."""
        return self._server.server_port if self._server else self._port

    def start(self) -> None:
        """Binds and serves; an address that cannot be used is a `PortError`."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        kind = type("_FamilyServer", (_Server,), {"address_family": family})
        try:
            server: _Server = kind((self._host, self._port), _Handler)
        except OSError as error:
            raise port_error(self._listen, "[metrics] listen", error) from error
        server.set_app(self._answer)
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="telemetry", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the endpoint; doing it twice changes nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
        if method not in ("GET", "HEAD"):
            return _plain(start_response, "405 Method Not Allowed", "only GET")
        if path == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        if path == "/healthz":
            return _plain(start_response, "200 OK", "ok")
        if path == "/readyz":
            missing = self._ready()
            if missing is None:
                return _plain(start_response, "200 OK", "ready")
            return _plain(start_response, "503 Service Unavailable", missing)
        return _plain(start_response, "404 Not Found", "/metrics, /healthz or /readyz")


def _plain(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    body = f"{text}\n".encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # a peer that keeps its connection open must not hold up the end of the program

    def server_bind(self) -> None:
        """As the parents do, but without asking DNS for this machine's full name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that goes away in mid-request is no event worth a traceback on stderr."""


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def get_stderr(self) -> io.StringIO:
        """Takes the traceback of a failing request, which may quote anything; the peer gets a plain 500."""
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""

    def address_string(self) -> str:
        return str(self.client_address[0])  # no reverse lookup


class GaugeTable(Collector):
    """One gauge whose rows are replaced together. Empty until then. Safe to call from any thread."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._rows: Mapping[tuple[str, ...], float] = {}

    def replace(self, rows: Mapping[tuple[str, ...], float]) -> None:
        """The labels of each row with its value."""
        self._rows = dict(rows)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._rows.items():
            family.add_metric(labels, value)
        yield family


class DiskSpace(Collector):
    """Free and whole bytes of the disk that holds a folder, as `PREFIX_state_…_bytes`."""

    def __init__(self, prefix: str, folder: Path) -> None:
        self._prefix = prefix
        self._folder = folder

    def collect(self) -> Iterable[GaugeMetricFamily]:
        try:
            found = shutil.disk_usage(self._folder)
            free, total = found.free, found.total
        except OSError:  # a disk that is gone has no room: that is what an alert has to see
            free, total = 0, 0
        yield GaugeMetricFamily(
            f"{self._prefix}_state_free_bytes", "Free on the disk of the state folder; 0: it is gone", free
        )
        yield GaugeMetricFamily(
            f"{self._prefix}_state_size_bytes", "Size of the disk of the state folder", total
        )
