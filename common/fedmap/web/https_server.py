"""An ASGI application over HTTPS, in a thread of its own: uvicorn with our TLS, limits and log.

The certificate is looked at before each connection, so a renewed one is used at once. Proxy headers are not
believed: the client's address is the socket's. How a connection behaves is in `connection`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fedmap.errors import ConfigError
from fedmap.process.addresses import port_error, split_listen
from fedmap.process.log import get_logger
from fedmap.web.connection import Connection, Limits
from fedmap.web.request_guard import RequestGuard
from fedmap.web.tls import CertificateSource, ServerTls

_START_SECONDS = 30.0


class HttpsServer:
    """`certificate` is a function or two paths; with `client_ca_pem` a client may show a certificate."""

    def __init__(
        self,
        listen: str,
        app: ASGIApp,
        certificate: CertificateSource,
        client_ca_pem: bytes | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._listen = listen
        self._host, self._port = split_listen(listen)
        self._app = app
        self._limits = limits or Limits()
        self._tls = ServerTls(certificate, client_ca_pem)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is really used, also when 0 was asked for."""
        return self._port

    def start(self) -> None:
        """Binds and serves; an address that cannot be used is a `PortError`."""
        listener = self._bind()
        self._port = int(listener.getsockname()[1])
        server = _Server(RequestGuard(self._app, self._limits.max_body), self._tls, self._limits)
        self._thread = threading.Thread(target=server.serve_on, args=[listener], name="https", daemon=True)
        self._thread.start()
        if not server.settled.wait(_START_SECONDS) or not server.started:
            raise ConfigError(
                "HTTPS endpoint",
                (f"did not start on {self._listen}",),
                hint="Look for web_ events in the log, then start it again.",
            )
        self._server = server
        get_logger().info("web_listening", port=self._port)

    def stop(self) -> None:
        """Ends the endpoint; answers under way get a few seconds. Doing it twice changes nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _bind(self) -> socket.socket:
        try:
            found = socket.getaddrinfo(
                self._host or "0.0.0.0", self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _kind, _protocol, _name, address = found[0]
            return socket.create_server(address[:2], family=family, backlog=256)
        except OSError as error:
            raise port_error(self._listen, "the address of the HTTPS endpoint", error) from error


class _Server(uvicorn.Server):
    """uvicorn's server with our connections on our TLS, and no output of its own."""

    def __init__(self, app: ASGIApp, tls: ServerTls, limits: Limits) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # its messages quote requests; ours are in `request_guard`
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=limits.stop_seconds,
            h11_max_incomplete_event_size=limits.max_head,
        )
        super().__init__(config)
        self.settled = threading.Event()
        self._tls = tls
        self._limits = limits

    def serve_on(self, listener: socket.socket) -> None:
        """Serves until told to end; whoever waits for the start is woken also when there was none."""
        try:
            self.run(sockets=[listener])
        finally:
            self.settled.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_failure)
        await self.lifespan.startup()
        self.servers = [
            await loop.create_server(
                self._connect,
                sock=listener,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._limits.handshake_seconds,
                ssl_shutdown_timeout=2.0,
            )
            for listener in sockets or []
        ]
        self.started = True
        self.settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.transport.abort()
        await asyncio.sleep(0)  # the aborted ones take their leave

    def _connect(self) -> Connection:
        self._tls.refresh()
        return Connection(self.config, self.server_state, self._limits)


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    get_logger().warning("web_connection_failed", exc_info=context.get("exception"))
