"""The server's TLS settings, and a certificate that may be renewed while the server runs.

TLS 1.2 or newer. A client certificate is asked for where a CA is given, and never demanded: who comes without
one is a visitor, and what a visitor may do is for the application. Session tickets are off, so that every
connection shows its certificate anew.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmap.errors import ConfigError, FedmapError
from fedmap.files.durable import read_file
from fedmap.process.log import get_logger
from fedmap.trust.certificates import load_certificate

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
