"""Web servers of the tests' own, over real TLS: one that cuts connections, one that answers as it is told."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmap_site.link.https import Link, Way
from tests.common.web.serving import Federation


class Cut(Exception):  # noqa: N818  it ends a connection, it reports nothing
    """Ends an answer midway."""


class Cutting:
    """An application whose downloads break off after so many bytes, as often as `times` says."""

    def __init__(self, app: ASGIApp, after: int, times: int = 1) -> None:
        self._app = app
        self._after = after
        self._times = times
        self.ranges: list[str] = []
        """What each download asked for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET" or not scope["path"].endswith(".fedmap"):
            await self._app(scope, receive, send)
            return
        asked = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.ranges.append(asked.get("range", ""))
        left = self._after if self._times else -1
        self._times = max(0, self._times - 1)

        async def send_some(message: Message) -> None:
            nonlocal left
            body = message.get("body", b"")
            if left >= 0 and len(body) > left:
                await send({**message, "body": body[:left], "more_body": True})
                raise Cut
            left -= len(body) if left >= 0 else 0
            await send(message)

        try:
            await self._app(scope, receive, send_some)
        except* Cut:
            raise Cut from None


@dataclass
class Told:
    """What a server answers: status, headers, body; and what it was asked."""

    answer: Callable[[str, str], tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def link(self) -> Link:
        return Link("localhost", self.port, "/bundles/tiny-t2-1.fedmap")


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not trust the server hangs up: nothing to report."""


@contextmanager
def telling(told: Told, federation: Federation, folder: Path) -> Iterator[Told]:
    """A plain HTTPS server that answers as `told.answer` says, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def do_GET(self) -> None:
            told.asked.append((self.command, self.path, dict(self.headers)))
            status, headers, body = told.answer(self.command, self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)
            self.close_connection = True

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            return

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, pem in zip(("server.pem", "server.key"), federation.server_pair(), strict=True):
        (folder / name).write_bytes(pem)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with _QuietServer(("127.0.0.1", 0), Handler) as server:
        told.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()


def way_of(federation: Federation, proxy: str = "") -> Way:
    """A client that trusts this federation's servers."""
    return Way(federation.authority.certificate_pem, proxy=proxy)
