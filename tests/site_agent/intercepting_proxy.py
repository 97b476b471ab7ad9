"""A web gateway that inspects TLS, for real: it grants CONNECT, then shows a certificate of its own.

Where a client goes on all the same, it reads what the client says and counts that; it hands nothing on.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from tests.site_agent.federation_double import now

GATEWAY = "Hospital web gateway"
_SECONDS = 10.0


class InterceptingProxy:
    """Listens on a free port of this machine while the block lasts."""

    def __init__(self, folder: Path, host: str = "localhost") -> None:
        authority, _ = CertificateAuthority.create(GATEWAY, 30, now())
        key = new_key()
        certificate = authority.issue(key.public_key(), Identity("aggregator"), 10, now(), (host,))
        pair = folder / "gateway.pem"
        pair.write_bytes(certificate + key_pem(key))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair)
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._serve)]
        self.granted: list[str] = []  # the targets of CONNECT
        self.read_along = 0  # handshakes that a client completed

    @property
    def url(self) -> str:
        return f"http://localhost:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._connection, args=[peer])
            self._threads.append(thread)
            thread.start()

    def _connection(self, peer: socket.socket) -> None:
        peer.settimeout(_SECONDS)
        with peer, contextlib.suppress(OSError):  # a client that hangs up is what the test is about
            head = b""
            while b"\r\n\r\n" not in head:
                piece = peer.recv(4096)
                if not piece:
                    return
                head += piece
            self.granted.append(head.split()[1].decode())
            peer.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with self._context.wrap_socket(peer, server_side=True) as inside:
                if inside.recv(1):
                    self.read_along += 1
