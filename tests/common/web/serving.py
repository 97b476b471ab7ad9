"""Certificates of a federation made for a test, servers on free ports, and a client that trusts them."""

from __future__ import annotations

import datetime
import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap.web.connection import Limits
from fedmap.web.https_server import HttpsServer

SECONDS = 20.0


@dataclass(frozen=True)
class Federation:
    """A CA, and certificates that it issues."""

    authority: CertificateAuthority

    @classmethod
    def found(cls) -> Federation:
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
        return cls(CertificateAuthority.create("Test federation", 400, now)[0])

    def pair(self, identity: Identity, days: float = 90, hosts: tuple[str, ...] = ()) -> tuple[bytes, bytes]:
        """Certificate and key, valid from 30 days ago for so many days."""
        key = new_key()
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
        return self.authority.issue(key.public_key(), identity, days, start, hosts), key_pem(key)

    def server_pair(self) -> tuple[bytes, bytes]:
        return self.pair(Identity("aggregator"), hosts=("localhost", "127.0.0.1"))

    def client(self, folder: Path, pair: tuple[bytes, bytes] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.certificate_pem.decode())
        if pair is not None:
            for name, content in zip(("client.pem", "client.key"), pair, strict=True):
                (folder / name).write_bytes(content)
            context.load_cert_chain(folder / "client.pem", folder / "client.key")
        return context


@contextmanager
def serving(app: ASGIApp, federation: Federation, limits: Limits | None = None) -> Iterator[HttpsServer]:
    """The application on a free port of this machine, until the block ends."""
    pair = federation.server_pair()
    server = HttpsServer("127.0.0.1:0", app, lambda: pair, federation.authority.certificate_pem, limits)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(
    server: HttpsServer,
    context: ssl.SSLContext,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
) -> Answer:
    """One request on a connection of its own. Header names of the answer are in lower case."""
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=SECONDS)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()
