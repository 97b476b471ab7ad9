"""The contract's calls over one channel: values go out and come in, failures are errors of the one tree.

A request's type says which call it is for. Nothing is decided here and nothing is tried again. The channel
uses exactly the proxy and the authority it is given: nothing from the environment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import grpc

from fedmap.contract import wire
from fedmap.errors import FedmapError
from fedmap.transport.channel_options import client_options
from fedmap.transport.chunks import read_chunk
from fedmap.transport.status import typed_error

# Short calls answer from memory or one database read. A transfer has as long as the aggregator gives it.
CALL_SECONDS = 30.0
TRANSFER_SECONDS = 3600.0
_LOOK_UP_SECONDS = 0.5  # how often a waiting call asks whether it should go on waiting
# The standard health service, as bytes: an empty request asks about the whole server; field 1 = 1 is SERVING.
_HEALTH, _SERVING = "/grpc.health.v1.Health/Check", b"\x08\x01"

V = TypeVar("V")


@dataclass(frozen=True)
class Credentials:
    """What a channel shows and whom it trusts, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


@dataclass(frozen=True)
class Route:
    """Whom to dial, and through what."""

    address: str
    proxy: str = field(default="", repr=False)


class ContractClient:
    """One channel over mutual TLS. Its methods may be called from several threads."""

    def __init__(self, route: Route, credentials: Credentials) -> None:
        self._route = route
        self._channel = _opened(route, credentials)

    def renew_with(self, credentials: Credentials) -> None:
        """Dial anew with another certificate; calls under way on the old channel are cut off."""
        old, self._channel = self._channel, _opened(self._route, credentials)
        old.close()

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: object, answer: type[V], seconds: float = CALL_SECONDS) -> V:
        """One message for one message."""
        with _typed():
            return self._single(request, answer)(request, timeout=seconds)

    def ask_unless(
        self, interrupted: Callable[[], bool], request: object, answer: type[V], seconds: float
    ) -> V | None:
        """As `ask`, but None as soon as `interrupted` says so."""
        with _typed():
            call = self._single(request, answer).future(request, timeout=seconds)
            done = threading.Event()
            call.add_done_callback(lambda _: done.set())
            try:
                while not done.wait(_LOOK_UP_SECONDS):
                    if interrupted():
                        return None
                return call.result()
            finally:
                call.cancel()  # changes nothing on a call that is over

    def chunks(self, request: object) -> Iterator[memoryview]:
        """The bytes that a call gives in chunks, as they arrive."""
        call = self._channel.unary_stream(
            wire.rpc_of(type(request)).path, request_serializer=wire.write, response_deserializer=read_chunk
        )(request, timeout=TRANSFER_SECONDS)
        try:
            with _typed():
                yield from call
        finally:
            call.cancel()

    def upload(self, request: type, parts: Iterator[bytes], answer: type[V]) -> V:
        """One message for many, which come as the bytes that they are on the wire."""
        failures: list[FedmapError] = []  # gRPC swallows what its own thread raises

        def sent() -> Iterator[bytes]:
            try:
                yield from parts
            except FedmapError as error:
                failures.append(error)

        call: grpc.StreamUnaryMultiCallable[bytes, V] = self._channel.stream_unary(
            wire.rpc_of(request).path, response_deserializer=wire.reader(answer)
        )
        try:
            with _typed():
                return call(sent(), timeout=TRANSFER_SECONDS)
        except FedmapError as error:
            # What went wrong here explains what the other side then complained about.
            raise (failures or [error])[0] from None

    def is_serving(self, seconds: float) -> bool:
        """Whether the health service says so; not knowing is an error."""
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_HEALTH)
        with _typed():
            return check(b"", timeout=seconds) == _SERVING

    def _single(self, request: object, answer: type[V]) -> grpc.UnaryUnaryMultiCallable[object, V]:
        return self._channel.unary_unary(
            wire.rpc_of(type(request)).path,
            request_serializer=wire.write,
            response_deserializer=wire.reader(answer),
        )


def _opened(route: Route, credentials: Credentials) -> grpc.Channel:
    secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    options = [*client_options(route.proxy), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(route.address, secure, options=options)


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise typed_error(error) from error
