"""An ASGI application over HTTPS, in a thread of its own: uvicorn with our TLS, limits and log.

The certificate is looked at before each connection, so a renewed one is used at once. Proxy headers are
not believed: the client's address is the socket's. How a connection behaves is in `connection`. TLS 1.2 or
newer. A client certificate is asked for where a CA is given, and never demanded: who comes without one is
a visitor, and what a visitor may do is for the application. Session tickets are off, so that every
connection shows its certificate anew.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fedmap.errors import ConfigError, FedmapError
from fedmap.files.durable import read_file
from fedmap.process.addresses import port_error, split_listen
from fedmap.process.log import get_logger
from fedmap.trust.certificates import load_certificate
from fedmap.web.connection import Connection, Limits
from fedmap.web.request_guard import RequestGuard

KeyPair = tuple[bytes, bytes]
"""Certificate chain and private key, PEM."""
CertificateSource = Callable[[], KeyPair] | tuple[Path, Path]

_HINT = "Give a PEM certificate (with its chain) and the private key that belongs to it, without a password."


class ServerTls:
    """A context for all connections of a server. `refresh` before a connection takes up a new certificate."""

    def __init__(self, source: CertificateSource, client_ca_pem: bytes | None) -> None:
        self._source = source
        self._client_ca_pem = client_ca_pem
        self._pair = self._read()
        self.context = _context(self._pair, client_ca_pem)

    def refresh(self) -> None:
        """Takes up a changed certificate. One that cannot be used is reported, and the old one stays."""
        try:
            pair = self._read()
            if pair == self._pair:
                return
            # A try on a context of its own: a pair that fails halfway would spoil the one in use.
            _context(pair, None)
            _load(self.context, pair)
        except (FedmapError, OSError) as error:
            get_logger().warning("web_certificate_not_renewed", exc_info=error)
            return
        self._pair = pair
        get_logger().info("web_certificate_renewed")

    def _read(self) -> KeyPair:
        if callable(self._source):
            return self._source()
        certificate, key = self._source
        return read_file(certificate), read_file(key)


def _context(pair: KeyPair, client_ca_pem: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    _load(context, pair)
    if client_ca_pem is not None:
        load_certificate(client_ca_pem)  # a typed error, where OpenSSL would only say "no start line"
        context.load_verify_locations(cadata=client_ca_pem.decode("ascii"))
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    certificate, key = pair
    with _as_file(certificate) as certificate_path, _as_file(key) as key_path:
        try:
            # The empty password: OpenSSL must not ask for one on the terminal.
            context.load_cert_chain(certificate_path, key_path, password="")
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                "HTTPS certificate", ("certificate and key cannot be used together",), hint=_HINT
            ) from error


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """OpenSSL is given files only. In memory where the system can, so that no key touches another disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(content)
            file.flush()
            yield file.name


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
