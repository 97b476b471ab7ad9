"""Errors over a real wire: the same class comes out, and a broken connection is named as what it is."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from fedmap.errors import (
    ConfigError,
    DataError,
    FedmapError,
    IncompatibleError,
    LimitError,
    NotAllowedError,
    PlanError,
    RejectedError,
    ServiceError,
    StorageError,
    UnreachableError,
)
from fedmap.transport import status
from fedmap.transport.channel_options import MAX_MESSAGE, client_options, server_options
from fedmap.transport.connection_faults import CAUSES, Cause, unreachable
from fedmap.transport.status import STATUS, TRAILER, error_classes, to_status, to_trailers, typed_error
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key

SITE = Identity("site", "a")
Reply = Callable[[bytes], bytes]


def echoed(request: bytes) -> bytes:
    return request


@dataclass
class Service:
    """One method, /fedmap.test/Call; `reply` decides what it does."""

    ca: CertificateAuthority
    now: datetime.datetime
    port: int = 0
    reply: Reply = field(default=echoed)
    trailer: bytes | None = None  # sent with a refusal instead of an answer

    def handle(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self.trailer is not None:
            context.set_trailing_metadata(((TRAILER, self.trailer),))
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        try:
            return self.reply(request)
        except FedmapError as error:
            context.set_trailing_metadata(to_trailers(error))
            context.abort(*to_status(error))

    def pair(
        self, identity: Identity = SITE, *, ca: CertificateAuthority | None = None
    ) -> tuple[bytes, bytes]:
        """Key and certificate."""
        key = new_key()
        return key_pem(key), (ca or self.ca).issue(key.public_key(), identity, 10, self.now)

    def call(
        self,
        request: bytes = b"",
        *,
        address: str = "",
        trusted: bytes = b"",
        pair: tuple[bytes, bytes] | None = None,
        proxy: str = "",
        options: tuple[tuple[str, str], ...] = (),
        timeout: float = 20,
        method: str = "/fedmap.test/Call",
    ) -> bytes:
        """One call over a channel of its own."""
        credentials = grpc.ssl_channel_credentials(trusted or self.ca.certificate_pem, *(pair or self.pair()))
        target = address or f"localhost:{self.port}"
        with grpc.secure_channel(target, credentials, options=[*client_options(proxy), *options]) as channel:
            call: Callable[..., bytes] = channel.unary_unary(method)
            return call(request, timeout=timeout)


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    now = datetime.datetime.now(datetime.UTC)
    ca, _ = CertificateAuthority.create("test", 100, now)
    service = Service(ca, now)
    key = new_key()
    certificate = ca.issue(key.public_key(), Identity("aggregator"), 10, now, ("localhost", "127.0.0.1"))
    server = grpc.server(ThreadPoolExecutor(4), options=server_options())
    credentials = grpc.ssl_server_credentials([(key_pem(key), certificate)], ca.certificate_pem, True)
    service.port = server.add_secure_port("localhost:0", credentials)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(service.handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedmap.test", {"Call": handler}),))
    server.start()
    yield service
    server.stop(None).wait()


@pytest.fixture
def service(running: Service) -> Service:
    running.reply, running.trailer = echoed, None
    return running


def made(kind: type[FedmapError]) -> FedmapError:
    if kind in (PlanError, DataError, ConfigError):
        listed: Callable[..., FedmapError] = kind
        return listed("source", ("first", "second"), hint="do this")
    return kind(f"what happened: {kind.code} – ü", hint="do this")


def failing(error: BaseException) -> Callable[[bytes], bytes]:
    def reply(_request: bytes) -> bytes:
        raise error

    return reply


def outcome(call: Callable[[], bytes]) -> FedmapError:
    """The typed error of a call that must fail."""
    try:
        call()
    except grpc.RpcError as error:
        return typed_error(error)
    raise AssertionError("the call did not fail")


def test_every_error_class_has_a_status() -> None:
    assert STATUS.keys() == error_classes().keys()
    assert len(error_classes()) == 21


def test_no_two_classes_share_a_code() -> None:
    waiting, codes = [FedmapError], []
    while waiting:
        kind = waiting.pop()
        codes.append(kind.code)
        waiting += kind.__subclasses__()
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("code", sorted(set(STATUS) - {"storage", "config"}))
def test_each_error_crosses_the_wire_with_class_message_and_hint(service: Service, code: str) -> None:
    sent = made(error_classes()[code])
    service.reply = failing(sent)
    got = outcome(service.call)
    assert type(got) is type(sent)
    assert (got.message, got.hint, str(got)) == (sent.message, sent.hint, str(sent))
    if isinstance(got, PlanError | DataError):
        assert got.problems == ("first", "second")
    if isinstance(got, DataError):
        assert got.site == "source"


@pytest.mark.parametrize(
    "error",
    [
        StorageError("/srv/fedmap/state: the disk is full", hint="df /srv/fedmap"),
        ConfigError("/etc/fedmap/secret.toml", ("x",), hint="edit it"),
    ],
)
def test_what_fails_in_the_servers_own_house_stays_there(service: Service, error: FedmapError) -> None:
    service.reply = failing(error)
    got = outcome(service.call)
    assert isinstance(got, UnreachableError)
    assert "/" not in str(got)
    assert "later" in got.hint


def test_a_very_long_error_is_shortened_and_arrives(service: Service) -> None:
    sent = PlanError(
        "plan", tuple(f"features[{n}]: ü is wrong in a wordy way" for n in range(2000)), hint="h" * 9999
    )
    service.reply = failing(sent)
    got = outcome(service.call)
    assert isinstance(got, PlanError)
    assert len(got.message) <= 8_000
    assert sent.message.startswith(got.message[:-1])


def test_the_status_text_is_one_short_line() -> None:
    code, text = to_status(PlanError("plan", ("x" * 1000,), hint="h"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == "plan: 1 problem(s) in the study plan"
    assert len(to_status(RejectedError("y" * 1000, hint="h"))[1]) == 300


def test_a_code_of_a_newer_version_is_still_a_refusal(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.reply = failing(RejectedError("no", hint="do this"))
    monkeypatch.setattr(status, "_CLASSES", {})
    got = outcome(service.call)
    assert type(got) is ServiceError
    assert got.message == "no"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"code": "stale"}', b"\xff", b"null"])
def test_a_trailer_that_makes_no_sense_leaves_the_status_to_speak(service: Service, body: bytes) -> None:
    service.trailer = body
    assert isinstance(outcome(service.call), NotAllowedError)


def test_an_error_that_is_no_call_is_unreachable() -> None:
    assert isinstance(typed_error(grpc.RpcError()), UnreachableError)


def test_a_call_that_works_returns_its_answer(service: Service) -> None:
    assert service.call(b"hello") == b"hello"


def test_an_unknown_method_and_a_message_over_the_limit_have_their_own_errors(service: Service) -> None:
    assert isinstance(outcome(lambda: service.call(method="/fedmap.test/Newer")), IncompatibleError)
    assert isinstance(outcome(lambda: service.call(b"x" * (MAX_MESSAGE + 1))), LimitError)


def test_a_crash_of_the_server_tells_nothing_of_its_message(service: Service) -> None:
    service.reply = failing(ValueError("NHS-943-476-5919"))
    got = outcome(service.call)
    assert isinstance(got, UnreachableError)
    assert "943" not in str(got)


def test_a_server_that_is_too_slow_is_unreachable_for_now(service: Service) -> None:
    answer = threading.Event()

    def slow(request: bytes) -> bytes:
        answer.wait(20)
        return request

    service.reply = slow
    got = outcome(lambda: service.call(timeout=0.5))
    answer.set()
    assert isinstance(got, UnreachableError)
    assert "in time" in got.message


@contextmanager
def answering(text: bytes) -> Iterator[int]:
    """A server that answers every connection with the same bytes and closes it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(text)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def foreign(service: Service) -> CertificateAuthority:
    return CertificateAuthority.create("other", 10, service.now)[0]


def closed_port(service: Service) -> bytes:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return service.call(address=f"127.0.0.1:{closed.getsockname()[1]}")


def refusing_proxy(service: Service) -> bytes:
    with answering(b"HTTP/1.1 403 Forbidden\r\n\r\n") as port:
        return service.call(proxy=f"http://127.0.0.1:{port}")


def without_tls(service: Service) -> bytes:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        return service.call(address=f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda s: s.call(trusted=foreign(s).certificate_pem), "not trusted", "inspects TLS"),
        (lambda s: s.call(pair=s.pair(ca=foreign(s))), "", "this side's certificate"),
        (lambda s: s.call(options=(("grpc.ssl_target_name_override", "else.where"),)), "another name", ""),
        (closed_port, "is refused", "proxy"),
        (lambda s: s.call(address="no-such-host.invalid:8443"), "cannot be resolved", ""),
        (refusing_proxy, "proxy", "CONNECT"),
        (without_tls, "TLS handshake failed", ""),
    ],
)
def test_a_broken_connection_is_named_as_what_it_is(
    service: Service, call: Callable[[Service], bytes], message: str, hint: str
) -> None:
    got = outcome(lambda: call(service))
    assert isinstance(got, UnreachableError)
    assert message in got.message
    assert hint in got.hint


def test_the_proxy_of_the_environment_is_not_used(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"HTTP/1.1 403 Forbidden\r\n\r\n") as port:
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        assert service.call(b"direct") == b"direct"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.message)
def test_each_cause_is_recognised_by_each_of_its_words(cause: Cause) -> None:
    for word in cause.words.split(", "):
        error = unreachable(grpc.StatusCode.UNAVAILABLE, f"{cause.only} {word.upper()}")
        assert error.message.startswith(cause.message)


def test_words_that_are_not_known_get_a_general_hint() -> None:
    error = unreachable(grpc.StatusCode.UNAVAILABLE, "something new\nwith lines")
    assert "something new with lines" in error.message
    assert unreachable(grpc.StatusCode.CANCELLED, "").hint
    assert "INTERNAL" in unreachable(grpc.StatusCode.INTERNAL, "secret text").message


def test_the_trailer_is_binary_metadata() -> None:
    ((key, value),) = to_trailers(RejectedError("ü", hint="h"))
    assert key.endswith("-bin")
    assert isinstance(value, bytes)
