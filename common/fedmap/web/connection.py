"""One HTTPS connection: uvicorn's, with the client's certificate, deadlines, and an end one can know.

uvicorn waits for ever for a request's head or body, and for a client that does not read. Here each of these
has a deadline, after which the connection is cut. Applications find in `request.state`:

    client_certificate   DER of the verified client certificate, or None
    delivered            coroutine function: whether all that was sent has reached the client's machine
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
from dataclasses import dataclass

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

_POLL_SECONDS = 0.05
_UNSENT_BYTES = 128 * 1024


@dataclass(frozen=True)
class Limits:
    """What one client may take of the server."""

    max_head: int = 16 * 1024  # bytes of request line and headers
    max_body: int = 64 * 1024
    connections: int = 256
    connections_per_address: int = 64  # a hospital's proxy stands for many people
    head_seconds: float = 15.0
    body_seconds: float = 120.0
    stall_seconds: float = 60.0  # without the client taking anything
    idle_seconds: int = 10  # between two requests
    handshake_seconds: float = 15.0
    stop_seconds: int = 5  # for answers that are under way when the server stops


class Connection(H11Protocol):
    """uvicorn's protocol for HTTP/1.1, made for each connection before its TLS handshake."""

    def __init__(self, config: Config, server_state: ServerState, limits: Limits) -> None:
        super().__init__(config, server_state, {}, asyncio.get_running_loop())
        self._limits = limits
        self._stage = ""
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._acknowledged_at_end = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if isinstance(tls, ssl.SSLObject) else None
        self.app_state = {"client_certificate": certificate, "delivered": self.delivered}
        sock = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Else megabytes wait in the kernel, and a slow client looks like one that has stopped.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if self._seats_of_this_address() > self._limits.connections_per_address:
            transport.abort()
            return
        self._watch_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def eof_received(self) -> None:
        # The client's last segment acknowledges what its machine has received; soon the socket is gone.
        self._acknowledged_at_end = self._unacknowledged() == 0
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stage = "over"
        self._over.set()
        for timer in (self._request_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()

    async def delivered(self) -> bool:
        """Waits until the client's machine has acknowledged every byte; False when it never did.

        That a write returned says little: a small file fits into the buffers on the way as a whole. Ask after
        the last byte and before the answer is completed, for then the connection may be closed from here.
        """
        quiet = 0
        deadline = self.loop.time() + self._limits.stall_seconds
        while not self._over.is_set() and self.loop.time() < deadline:
            # Twice, so that the loop has had its turn to hand over what it still kept.
            quiet = quiet + 1 if self._unacknowledged() == 0 else 0
            if quiet == 2:
                return True
            try:
                await asyncio.wait_for(self._over.wait(), _POLL_SECONDS)
            except TimeoutError:
                continue
        return self._over.is_set() and self._acknowledged_at_end

    def _unacknowledged(self) -> int:
        """Bytes that the client's machine has not yet said it has."""
        waiting = self.transport.get_write_buffer_size()
        sock = self.transport.get_extra_info("socket")
        if sock is None:  # closed in the meantime: what was handed over is all that is known
            return waiting
        try:
            answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except (OSError, ValueError):
            return waiting  # a system that cannot tell: handed over is all that is known
        return waiting + int(struct.unpack("i", answer)[0])

    def _watch_request(self) -> None:
        """A deadline for the head and one for the body, each from its start; none while we answer."""
        stage = self._current_stage()
        if stage == self._stage:
            return
        self._stage = stage
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        seconds = {"head": self._limits.head_seconds, "body": self._limits.body_seconds}.get(stage)
        if seconds is not None:
            self._request_timer = self.loop.call_later(seconds, self.transport.abort)

    def _current_stage(self) -> str:
        if self._over.is_set() or self.transport.is_closing():
            return "over"
        if self.conn.their_state is h11.IDLE:
            begun, _closed = self.conn.trailing_data
            return "head" if begun or self.cycle is None else "idle"
        return "body" if self.conn.their_state is h11.SEND_BODY else "answer"

    def _seats_of_this_address(self) -> int:
        host = self.client[0] if self.client else ""
        others = (other for other in self.connections if isinstance(other, Connection))
        return sum(1 for other in others if other.client and other.client[0] == host)
