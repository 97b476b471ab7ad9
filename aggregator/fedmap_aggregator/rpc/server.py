"""The gRPC server: one port, mutual TLS, and an interceptor that every call passes.

For each call, in this order: who is it and may they (call_guard) → has the caller a slot free → its
request → the handler → errors become a status with our trailer → one log line, one count. What a handler
raises beside our own errors is logged by type and place, and the caller learns only that it was unexpected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fedmap.contract import wire
from fedmap.errors import ConfigError, FedmapError, PortError, RejectedError, StorageError
from fedmap.process.addresses import bind_fault, split_listen
from fedmap.process.log import get_logger
from fedmap.transport.channel_options import server_options
from fedmap.transport.status import to_status, to_trailers, unexpected_error
from fedmap_aggregator.identity.callers import Caller
from fedmap_aggregator.identity.server import ServerIdentity
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.rpc.guard import CallGuard, set_caller
from fedmap_aggregator.rpc.stalls import StallWatch

_SHORT_CALLS = 64  # threads beside those of the long polls
_WAITING_CALLS = 64  # beyond all threads; more are refused at once
_STREAMS = 64  # of one connection at the same time

# Generic for the type checker only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour: TypeAlias = Callable[[Iterator[Any], grpc.ServicerContext], Any]


class GuardInterceptor(grpc.ServerInterceptor):
    """Wraps every handler, of whichever kind.

    To gRPC every call is one that streams its request: it would otherwise wait for the request, in a thread
    of the pool and for as long as the caller likes, before anybody has asked who that is.
    """

    def __init__(self, guard: CallGuard, metrics: AggregatorMetrics, watch: StallWatch) -> None:
        self._guard = guard
        self._metrics = metrics
        self._watch = watch
        self._log = get_logger()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler, rpc = continuation(handler_call_details), handler_call_details.method
        if handler is None:
            return None
        coders = (handler.request_deserializer, handler.response_serializer)
        # A single request is read as a stream of one: gRPC would wait for it before the guard is asked, so
        # that calls without a message would hold every thread.
        if handler.response_streaming:
            many: Any = (
                handler.stream_stream if handler.request_streaming else self._one(handler.unary_stream)
            )
            return grpc.stream_stream_rpc_method_handler(self._stream(rpc, many), *coders)
        one: Any = handler.stream_unary if handler.request_streaming else self._one(handler.unary_unary)
        return grpc.stream_unary_rpc_method_handler(self._single(rpc, one), *coders)

    def _single(self, rpc: str, behaviour: Behaviour) -> Behaviour:
        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._guarded(rpc, context):
                return behaviour(requests, context)

        return call

    def _stream(self, rpc: str, behaviour: Behaviour) -> Behaviour:
        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._guarded(rpc, context):
                yield from behaviour(requests, context)

        return call

    def _one(self, behaviour: Any) -> Behaviour:
        """Takes the one request from its stream; a caller that does not send it is cut off."""

        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._watch.waiting(context.cancel):
                request = next(requests, None)
            if request is None:
                raise RejectedError("the call holds no message", hint="update the program that makes it")
            return behaviour(request, context)

        return call

    @contextmanager
    def _guarded(self, rpc: str, context: grpc.ServicerContext) -> Iterator[Caller]:
        began, code, who = time.perf_counter(), "ok", ""
        self._metrics.call_started()
        try:
            caller = self._guard.identify(rpc, _certificate(context))
            who = caller.key
            with self._guard.admitted(caller):
                set_caller(caller)
                yield caller
        except FedmapError as error:
            code = error.code
            self._refuse(rpc, who, context, error)
        except grpc.RpcError:  # the caller hung up
            code = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 - told to nobody but our log, and the call fails
            code = "unexpected"
            self._log.error("call_failed", rpc=rpc, caller=who, exc_info=error)
            _abort(context, unexpected_error())
        finally:
            seconds = round(time.perf_counter() - began, 4)
            self._metrics.call_ended(rpc, code)
            self._log.debug("call", rpc=rpc, caller=who, code=code, seconds=seconds)

    def _refuse(self, rpc: str, who: str, context: grpc.ServicerContext, error: FedmapError) -> NoReturn:
        if isinstance(error, StorageError | ConfigError):
            self._log.error("call_failed", rpc=rpc, caller=who, exc_info=error)
        else:
            self._log.warning("call_refused", rpc=rpc, caller=who, code=error.code)
        _abort(context, error)


class AggregatorServer:
    """Binds at once, so that a port in use is an error before anything starts; serves after `start`."""

    def __init__(
        self,
        listen: str,
        identity: ServerIdentity,
        interceptor: GuardInterceptor,
        services: Sequence[grpc.GenericRpcHandler],
        *,
        polls: int,
        with_reflection: bool,
    ) -> None:
        threads = polls + _SHORT_CALLS
        self._health = health.HealthServicer()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._server = grpc.server(
            self._pool,
            interceptors=[interceptor],
            options=[*server_options(), ("grpc.max_concurrent_streams", _STREAMS)],
            maximum_concurrent_rpcs=threads + _WAITING_CALLS,
        )
        self._server.add_generic_rpc_handlers(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if with_reflection:
            reflection.enable_server_reflection((*service_names(), reflection.SERVICE_NAME), self._server)
        try:
            self.port = self._server.add_secure_port(listen, _credentials(identity))
        except RuntimeError as error:
            self._pool.shutdown(wait=False)
            fault = bind_fault(*split_listen(listen), "server.listen")
            raise fault or PortError(
                f"cannot listen on {listen}",
                hint="Another program uses the port, or the address is not one of this machine's.",
            ) from error

    def start(self) -> None:
        self._server.start()
        for name in ("", *service_names()):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_seconds: float) -> None:
        """Take no new call, let running ones end within the time, then cut them off."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=True, cancel_futures=True)


def service_names() -> tuple[str, ...]:
    """Of the contract and of health."""
    return (*wire.service_names(), health.SERVICE_NAME)


def _certificate(context: grpc.ServicerContext) -> bytes | None:
    """The leaf that TLS has verified."""
    values = context.auth_context().get("x509_pem_cert")
    found = next(iter(values), None) if values else None
    return found if isinstance(found, bytes) else None


def _abort(context: grpc.ServicerContext, error: FedmapError) -> NoReturn:
    status, text = to_status(error)
    context.set_trailing_metadata(to_trailers(error))
    context.abort(status, text)
    raise AssertionError("abort always raises")


def _credentials(identity: ServerIdentity) -> grpc.ServerCredentials:
    """Mutual TLS whose certificate may change while the server runs."""

    def current() -> grpc.ServerCertificateConfiguration:
        pair = identity.pair
        return grpc.ssl_server_certificate_configuration(
            [(pair.key_pem, pair.certificate_pem)], root_certificates=identity.client_ca_pem
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        return current() if identity.refresh() is not None else None

    # None means "as before", which the stubs do not know.
    return grpc.dynamic_ssl_server_credentials(
        current(),
        fetch,  # type: ignore[arg-type]
        require_client_authentication=True,
    )
