"""Clients that take too much of the server, or too slowly; and how the end of a transfer is known."""

from __future__ import annotations

import json
import queue
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fedmap.web.connection import Limits
from fedmap.web.https_server import HttpsServer
from tests.common.web.serving import SECONDS, Federation, ask, serving

CHUNK = b"x" * 65536
CHUNKS = 2000
SHORT = 0.2
PATIENT = Limits(
    head_seconds=60, body_seconds=60, stall_seconds=60, idle_seconds=60, handshake_seconds=60, max_body=1000
)

outcomes: queue.Queue[bool] = queue.Queue()


class Told:
    """An answer of a given size that afterwards notes whether it was delivered."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(self._chunks):
                yield CHUNK

        length = {"content-length": str(self._chunks * len(CHUNK))}
        await StreamingResponse(body(), headers=length)(scope, receive, send)
        outcomes.put(await scope["state"]["delivered"]())


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


APP = Starlette(
    routes=[
        Route("/echo", echo, methods=["POST"]),
        Route("/small", Told(1)),
        Route("/much", Told(CHUNKS)),
    ]
)


@pytest.fixture
def client(federation: Federation, tmp_path: Path) -> ssl.SSLContext:
    return federation.client(tmp_path)


@pytest.fixture(scope="module")
def server(federation: Federation) -> Iterator[HttpsServer]:
    with serving(APP, federation, PATIENT) as running:
        yield running


@contextmanager
def connected(server: HttpsServer, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    plain = socket.create_connection(("127.0.0.1", server.port), SECONDS)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
        yield wrapped


def read_to_the_end(connection: ssl.SSLSocket) -> bytes:
    """Everything until the server ends the connection, however it does that."""
    received = bytearray()
    try:
        while chunk := connection.recv(1 << 20):
            received += chunk
    except ConnectionError:
        pass
    return bytes(received)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("limit", "sent", "answers"),
    [
        pytest.param({"head_seconds": SHORT}, get("/small")[:-4] + b"\r\nX-Slow: ", 0, id="head"),
        pytest.param({"head_seconds": SHORT}, b"", 0, id="nothing after the handshake"),
        pytest.param({"head_seconds": SHORT}, get("/nowhere") + b"GET /small HT", 1, id="second head"),
        pytest.param(
            {"body_seconds": SHORT},
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nten bytes.",
            0,
            id="body",
        ),
        pytest.param({"idle_seconds": 0}, get("/nowhere"), 1, id="idle"),
    ],
)
def test_a_client_that_never_ends_what_it_began_is_cut_off(
    federation: Federation, client: ssl.SSLContext, limit: dict[str, Any], sent: bytes, answers: int
) -> None:
    with (
        serving(APP, federation, replace(PATIENT, **limit)) as server,
        connected(server, client) as connection,
    ):
        connection.sendall(sent)
        received = read_to_the_end(connection)
    assert received.count(b"HTTP/1.1 ") == received.count(b"HTTP/1.1 404") == answers
    assert answers or not received


def test_a_client_that_does_not_read_is_cut_off(federation: Federation, client: ssl.SSLContext) -> None:
    with (
        serving(APP, federation, replace(PATIENT, stall_seconds=SHORT)) as server,
        connected(server, client) as connection,
    ):
        connection.sendall(get("/much"))
        assert outcomes.get(timeout=SECONDS) is False
        assert len(read_to_the_end(connection)) < CHUNKS * len(CHUNK)


def test_a_client_that_never_begins_tls_is_cut_off(federation: Federation) -> None:
    with (
        serving(APP, federation, replace(PATIENT, handshake_seconds=SHORT)) as server,
        socket.create_connection(("127.0.0.1", server.port), SECONDS) as plain,
    ):
        assert plain.recv(100) == b""


def test_one_address_cannot_take_every_seat(federation: Federation, client: ssl.SSLContext) -> None:
    with (
        serving(APP, federation, replace(PATIENT, connections_per_address=1)) as server,
        connected(server, client) as first,
    ):
        first.sendall(get("/nowhere"))
        assert first.recv(1000).startswith(b"HTTP/1.1 404")
        with connected(server, client) as second:
            assert read_to_the_end(second) == b""


def test_more_connections_than_seats_are_told_to_come_back(
    federation: Federation, client: ssl.SSLContext
) -> None:
    with serving(APP, federation, replace(PATIENT, connections=1)) as server:
        assert ask(server, client, "/nowhere").status == 503


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET  / HTTP/9\r\n\r\n",
        b"\x00\xff\r\n\r\n",
        pytest.param(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 17_000 + b"\r\n\r\n", id="a huge head"),
    ],
)
def test_what_is_no_http_is_refused(
    server: HttpsServer, client: ssl.SSLContext, request_bytes: bytes
) -> None:
    with connected(server, client) as connection:
        connection.sendall(request_bytes)
        assert read_to_the_end(connection)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"HTTP/1.1 501")


def test_a_body_beyond_the_limit_is_refused_announced_or_not(
    server: HttpsServer, client: ssl.SSLContext
) -> None:
    assert ask(server, client, "/echo", method="POST", body=b"a" * 1000).text == "1000"
    announced = ask(server, client, "/echo", method="POST", body=b"a" * 1001)
    assert announced.status == 413
    assert json.loads(announced.body)["code"] == "limit"
    with connected(server, client) as connection:
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"200\r\n" + b"a" * 512 + b"\r\n200\r\n" + b"a" * 512 + b"\r\n0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_a_plain_asgi_application_is_guarded_from_large_bodies_too(
    federation: Federation, client: ssl.SSLContext
) -> None:
    async def reads_for_ever(_scope: Scope, receive: Receive, _send: Send) -> None:
        while True:
            await receive()

    with serving(reads_for_ever, federation, PATIENT) as server, connected(server, client) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 413")


def test_a_transfer_that_only_lies_in_buffers_has_not_arrived(
    federation: Federation, client: ssl.SSLContext
) -> None:
    """Small enough for the buffers on the way: handed over by the server, and not yet at the client."""
    with serving(Told(4), federation, replace(PATIENT, stall_seconds=SHORT)) as server:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(SECONDS)
        plain.connect(("127.0.0.1", server.port))
        with plain, client.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(get("/"))
            assert outcomes.get(timeout=SECONDS) is False
