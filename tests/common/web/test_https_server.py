"""The HTTPS server over real TLS: whom it serves, with which certificate, what it logs, and how it ends."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fedmap.errors import ConfigError, PortError, StorageError
from fedmap.trust.pki import Identity, load_key
from fedmap.web.https_server import HttpsServer
from tests.common.web.serving import SECONDS, Federation, ask, serving

PLANTED = "NHS-943-476-5919"
ROOT = Path(__file__).resolve().parents[3]
SITE = Identity("site", "leeds")
Pair = tuple[bytes, bytes]


def who(request: Request) -> Response:
    certificate: bytes | None = request.state.client_certificate
    digest = hashlib.sha256(certificate).hexdigest() if certificate else ""
    return JSONResponse({"certificate": digest, "host": request.client.host if request.client else ""})


def crash(_request: Request) -> Response:
    raise ValueError(PLANTED)


def half(_request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        raise ValueError(PLANTED)

    return StreamingResponse(chunks())


APP = Starlette(routes=[Route("/who", who), Route("/crash", crash), Route("/half", half)])


@pytest.fixture(scope="module")
def server(federation: Federation) -> Iterator[HttpsServer]:
    with serving(APP, federation) as running:
        yield running


def shown_certificate(port: int) -> bytes:
    """What the server shows now, DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        found = wrapped.getpeercert(binary_form=True)
        assert found is not None
        return found


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


class Visitors:
    """Those who ask the server of this module, with a certificate or without."""

    def __init__(self, server: HttpsServer, federation: Federation, folder: Path) -> None:
        self.server, self.federation, self.folder = server, federation, folder

    def who(self, pair: Pair | None = None, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        context = self.federation.client(self.folder, pair)
        told: dict[str, str] = json.loads(ask(self.server, context, "/who", headers).body)
        return told


@pytest.fixture
def visitors(server: HttpsServer, federation: Federation, tmp_path: Path) -> Visitors:
    return Visitors(server, federation, tmp_path)


def test_a_visitor_without_a_certificate_is_served_and_known_as_such(visitors: Visitors) -> None:
    assert visitors.who() == {"certificate": "", "host": "127.0.0.1"}


def test_each_connection_has_its_own_certificate(visitors: Visitors) -> None:
    """Who comes back shows the certificate again or is nobody: sessions are not resumed."""
    pair = visitors.federation.pair(SITE)
    digest = hashlib.sha256(der(pair[0])).hexdigest()
    told = [visitors.who(shown)["certificate"] for shown in (pair, None, pair)]
    assert told == [digest, "", digest]


@pytest.mark.parametrize(
    "pair_of",
    [
        pytest.param(lambda _: Federation.found().pair(SITE), id="foreign authority"),
        pytest.param(lambda ours: ours.pair(SITE, days=1), id="expired"),
        pytest.param(lambda ours: ours.pair(Identity("aggregator")), id="server's own kind"),
    ],
)
def test_a_client_certificate_that_does_not_stand_is_refused(
    visitors: Visitors, pair_of: Callable[[Federation], Pair]
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        visitors.who(pair_of(visitors.federation))


def test_a_forwarded_address_is_not_believed(visitors: Visitors) -> None:
    headers = {"X-Forwarded-For": "10.1.0.9", "Forwarded": "for=10.1.0.9", "X-Real-IP": "10.1.0.9"}
    assert visitors.who(headers=headers)["host"] == "127.0.0.1"


def test_tls_older_than_1_2_is_refused(server: HttpsServer, federation: Federation, tmp_path: Path) -> None:
    old = federation.client(tmp_path)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server, old, "/who")
    newer = federation.client(tmp_path)
    newer.maximum_version = ssl.TLSVersion.TLSv1_2
    assert ask(server, newer, "/who").status == 200


def test_plain_http_gets_no_answer(server: HttpsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as plain:
        plain.sendall(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP" not in plain.recv(1000)


def test_a_renewed_certificate_is_used_for_the_next_connection(
    federation: Federation, tmp_path: Path
) -> None:
    paths = (tmp_path / "server.pem", tmp_path / "server.key")

    def write(pair: tuple[bytes, bytes]) -> None:
        for path, content in zip(paths, pair, strict=True):
            path.write_bytes(content)

    first, second = federation.server_pair(), federation.server_pair()
    write(first)
    server = HttpsServer("127.0.0.1:0", APP, paths)
    server.start()
    try:
        assert shown_certificate(server.port) == der(first[0])
        write((second[0], first[1]))  # between the two files: a certificate with the key of another
        assert shown_certificate(server.port) == der(first[0])
        paths[1].unlink()
        assert shown_certificate(server.port) == der(first[0])
        write(second)
        assert shown_certificate(server.port) == der(second[0])
    finally:
        server.stop()


def test_key_and_certificate_that_do_not_fit_are_refused_at_the_start(
    federation: Federation, tmp_path: Path
) -> None:
    certificate, key = federation.server_pair()
    _, other = federation.server_pair()
    locked = load_key(key).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    for pair in ((certificate, other), (certificate, locked), (b"", key), (certificate, b"nonsense")):
        with pytest.raises(ConfigError, match="certificate and key cannot be used together"):
            HttpsServer("127.0.0.1:0", APP, lambda pair=pair: pair)  # type: ignore[misc]
    with pytest.raises(StorageError, match="no such file"):
        HttpsServer("127.0.0.1:0", APP, (tmp_path / "absent.pem", tmp_path / "absent.key"))
    with pytest.raises(ConfigError, match="PEM"):
        HttpsServer("127.0.0.1:0", APP, lambda: (certificate, key), client_ca_pem=b"no certificate")


def test_an_address_in_use_or_of_another_machine_is_a_plain_error(
    server: HttpsServer, federation: Federation
) -> None:
    for listen in (f"127.0.0.1:{server.port}", "192.0.2.1:0", "no-such-host.invalid:0"):
        with pytest.raises(PortError, match="cannot listen on"):
            HttpsServer(listen, APP, federation.server_pair).start()


def test_ipv6_in_brackets_and_every_interface_are_understood(federation: Federation) -> None:
    for listen in ("[::1]:0", ":0", "localhost:0"):
        server = HttpsServer(listen, APP, federation.server_pair)
        server.start()
        assert server.port > 0
        server.stop()


def test_stopping_ends_open_connections_and_frees_the_port(federation: Federation, tmp_path: Path) -> None:
    pair = federation.server_pair()
    before = set(threading.enumerate())
    server = HttpsServer("127.0.0.1:0", APP, lambda: pair)
    server.start()
    context = federation.client(tmp_path)
    with (
        socket.create_connection(("127.0.0.1", server.port), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as kept,
    ):
        kept.sendall(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        port = server.port
        server.stop()
        server.stop()
        while kept.recv(4096):
            pass
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "https"]
    again = HttpsServer(f"127.0.0.1:{port}", APP, lambda: pair)
    again.start()
    assert ask(again, context, "/who").status == 200
    again.stop()


def test_a_crash_quotes_nothing_to_the_visitor_and_nothing_in_the_log(
    federation: Federation, tmp_path: Path, logged: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(APP, federation) as server:
        context = federation.client(tmp_path)
        answer = ask(server, context, "/crash")
        assert answer.status == 500
        with pytest.raises(http.client.IncompleteRead):  # half an answer must not look like a whole one
            ask(server, context, "/half")
    said = capsys.readouterr()
    assert PLANTED not in answer.text + logged.getvalue() + said.out + said.err
    failures = [json.loads(line) for line in logged.getvalue().splitlines() if "web_request_failed" in line]
    assert {line["error"].partition(" ")[0] for line in failures} <= {"ValueError", "ExceptionGroup"}


def test_the_log_has_status_and_size_but_no_path(
    federation: Federation, tmp_path: Path, logged: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(APP, federation) as server:
        ask(server, federation.client(tmp_path), f"/{PLANTED}?token={PLANTED}", {"User-Agent": PLANTED})
        with socket.create_connection(("127.0.0.1", server.port), SECONDS) as plain:
            plain.sendall(b"not TLS at all\r\n\r\n")
            while plain.recv(1000):
                pass
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    (line,) = (line for line in lines if line["event"] == "web_answer")
    assert "dropped_fields" not in line
    assert (line["action"], line["status"], line["peer"]) == ("GET", 404, "127.0.0.1")
    said = capsys.readouterr()
    assert PLANTED not in logged.getvalue() + said.out + said.err
    assert said.err == ""


def test_a_program_that_forgets_to_stop_the_server_can_still_end(
    federation: Federation, tmp_path: Path
) -> None:
    for name, content in zip(("s.pem", "s.key"), federation.server_pair(), strict=True):
        (tmp_path / name).write_bytes(content)
    code = (
        "import sys; from pathlib import Path; from starlette.applications import Starlette\n"
        "from fedmap.web.https_server import HttpsServer\n"
        "HttpsServer('127.0.0.1:0', Starlette(), (Path(sys.argv[1]), Path(sys.argv[2]))).start()\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "s.pem"), str(tmp_path / "s.key")]
    ended = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 3, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
