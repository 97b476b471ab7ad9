"""A real gRPC server over mutual TLS on a free port, with a certificate authority of its own."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from fedmap.errors import FedmapError
from fedmap.transport.channel_options import client_options, server_options
from fedmap.transport.status import TRAILER, to_status, to_trailers
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
