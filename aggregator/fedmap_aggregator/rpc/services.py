"""Which handler serves which call of the contract, and how gRPC gets at it.

A request's type says which call it is for. Identity and errors are the interceptor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import grpc

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.transport.chunks import read_chunk, read_upload, serialise_chunk
from fedmap_aggregator.rpc.guard import current_caller
from fedmap_aggregator.rpc.handlers.bundles import BundleHandler, ReleaseHandler
from fedmap_aggregator.rpc.handlers.drop import DropHandler
from fedmap_aggregator.rpc.handlers.enrolment import EnrolmentHandler
from fedmap_aggregator.rpc.handlers.federation import FederationHandler
from fedmap_aggregator.rpc.handlers.operator import OperatorHandler
from fedmap_aggregator.rpc.handlers.purge import PurgeHandler
from fedmap_aggregator.rpc.pace import PacedParts, PaceLimits
from fedmap_aggregator.studies.polls import Poll

Serve: TypeAlias = Callable[..., Any]
"""(caller, request) → a value, or the chunks of a download; for an upload the request is its parts."""
_PARTS: Mapping[type, Callable[[bytes], Any]] = {
    values.SubmitAnswerRequest: read_upload,
    values.ImportDropRequest: read_chunk,
}
"""How a part of each upload is read where it lies."""


def serve_table(
    enrolment: EnrolmentHandler,
    federation: FederationHandler,
    bundles: BundleHandler,
    operator: OperatorHandler,
    drops: DropHandler,
    releases: ReleaseHandler,
    purges: PurgeHandler,
) -> Mapping[type, Serve]:
    """All calls by the type of their request."""
    return {
        values.EnrolRequest: lambda _, request: enrolment.enrol(request),
        values.RenewRequest: enrolment.renew,
        values.HelloRequest: federation.hello,
        values.ListStudiesRequest: lambda caller, _: federation.list_studies(caller),
        values.ApproveRequest: federation.approve,
        values.LeaveRequest: federation.leave,
        values.NextTaskRequest: federation.next_task,
        values.FetchPriorRequest: federation.fetch_prior,
        values.SubmitAnswerRequest: federation.submit,
        values.HeartbeatRequest: federation.heartbeat,
        values.ListBundlesRequest: lambda caller, _: bundles.list_bundles(caller),
        values.FetchBundleRequest: bundles.fetch,
        values.GetWithdrawalsRequest: lambda _, __: bundles.get_withdrawals(),
        values.InviteRequest: operator.invite,
        values.ListSitesRequest: lambda _, __: operator.list_sites(),
        values.RevokeSiteRequest: operator.revoke_site,
        values.CreateStudyRequest: operator.create_study,
        values.ControlStudyRequest: operator.control_study,
        values.GetStatusRequest: lambda _, request: operator.get_status(request),
        values.VerifyAuditRequest: lambda _, __: operator.verify_audit(),
        values.ExportDropRequest: drops.export,
        values.ImportDropRequest: drops.take,
        values.ReleaseBundleRequest: releases.release,
        values.ListReleasedRequest: lambda _, request: releases.list_released(request),
        values.WithdrawBundleRequest: releases.withdraw,
        values.MakeDownloadLinkRequest: releases.make_link,
        values.DownloadBundleRequest: lambda _, request: releases.download(request),
        values.PurgeStudyRequest: purges.purge,
        values.FetchDeletionRequest: lambda _, request: purges.fetch(request),
    }


def contract_services(table: Mapping[type, Serve], pace: PaceLimits) -> tuple[grpc.GenericRpcHandler, ...]:
    """Every service of the contract for gRPC, with nothing left out."""
    return tuple(
        grpc.method_handlers_generic_handler(
            service,
            {name: _method(rpc, table[rpc.request], pace) for name, rpc in wire.rpcs(service).items()},
        )
        for service in wire.service_names()
    )


def _method(rpc: wire.Rpc, serve: Serve, pace: PaceLimits) -> grpc.RpcMethodHandler[Any, Any]:
    """Requests are read in the call's own thread: gRPC has one thread to give them all out."""
    if rpc.takes_stream:
        behaviour = _paced(serve, _PARTS[rpc.request], pace)
        return grpc.stream_unary_rpc_method_handler(behaviour, None, wire.write)
    read: Callable[[bytes], Any] = wire.reader(rpc.request)
    if rpc.gives_stream:
        return grpc.unary_stream_rpc_method_handler(_single(serve, read), None, serialise_chunk)
    single = _waiting if rpc.request is values.NextTaskRequest else _single
    return grpc.unary_unary_rpc_method_handler(single(serve, read), None, wire.write)


def _single(serve: Serve, read: Callable[[bytes], Any]) -> Callable[[bytes, grpc.ServicerContext], Any]:
    return lambda request, _: serve(current_caller(), read(request))


def _waiting(serve: Serve, read: Callable[[bytes], Any]) -> Callable[[bytes, grpc.ServicerContext], Any]:
    """For a call that waits: it ends when the caller hangs up."""

    def call(request: bytes, context: grpc.ServicerContext) -> Any:
        poll = Poll()
        if not context.add_callback(poll.leave):  # the agent has hung up already
            poll.leave()
        return serve(current_caller(), read(request), poll)

    return call


def _paced(
    serve: Serve, read: Callable[[bytes], Any], pace: PaceLimits
) -> Callable[[Iterator[bytes], grpc.ServicerContext], Any]:
    """For uploads: one that is too slow is cut off."""

    def call(parts: Iterator[bytes], _: grpc.ServicerContext) -> Any:
        caller = current_caller()
        with PacedParts(parts, len, pace) as paced:
            return serve(caller, map(read, paced))

    return call
