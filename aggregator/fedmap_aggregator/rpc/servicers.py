"""The contract's services, each method one line to its handler. Identity and errors are the interceptor's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import grpc

from fedmap.contract.v1 import (
    bundles_pb2,
    bundles_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    federation_pb2_grpc,
    operator_pb2_grpc,
)
from fedmap.contract.v1 import federation_pb2 as federation
from fedmap.contract.v1 import operator_pb2 as operator
from fedmap.transport.chunk_messages import UploadPart
from fedmap_aggregator.rpc.guard import current_caller
from fedmap_aggregator.rpc.handlers.bundles import BundleHandler, ReleaseHandler
from fedmap_aggregator.rpc.handlers.drop import DropHandler
from fedmap_aggregator.rpc.handlers.enrolment import EnrolmentHandler
from fedmap_aggregator.rpc.handlers.federation import FederationHandler
from fedmap_aggregator.rpc.handlers.operator import OperatorHandler
from fedmap_aggregator.rpc.handlers.purge import PurgeHandler
from fedmap_aggregator.rpc.pace import PacedParts, PaceLimits
from fedmap_aggregator.studies.polls import Poll

# ruff: noqa: N802, ARG002 - names and arguments are the contract's

Context = grpc.ServicerContext


def _size(part: operator.ImportDropRequest) -> int:
    """Without a copy of the bytes, which looking at `chunk` would make."""
    return part.ByteSize()


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServiceServicer):
    def __init__(self, handler: EnrolmentHandler) -> None:
        self._handler = handler

    def Enrol(self, request: enrolment_pb2.EnrolRequest, context: Context) -> enrolment_pb2.EnrolResponse:
        return self._handler.enrol(request)

    def Renew(self, request: enrolment_pb2.RenewRequest, context: Context) -> enrolment_pb2.RenewResponse:
        return self._handler.renew(current_caller(), request)


class FederationServicer(federation_pb2_grpc.FederationServiceServicer):
    def __init__(self, handler: FederationHandler, pace: PaceLimits) -> None:
        self._handler = handler
        self._pace = pace

    def Hello(self, request: federation.HelloRequest, context: Context) -> federation.HelloResponse:
        return self._handler.hello(current_caller(), request)

    def ListStudies(
        self, request: federation.ListStudiesRequest, context: Context
    ) -> federation.ListStudiesResponse:
        return self._handler.list_studies(current_caller())

    def Approve(self, request: federation.ApproveRequest, context: Context) -> federation.ApproveResponse:
        return self._handler.approve(current_caller(), request)

    def Leave(self, request: federation.LeaveRequest, context: Context) -> federation.LeaveResponse:
        return self._handler.leave(current_caller(), request)

    def NextTask(self, request: federation.NextTaskRequest, context: Context) -> federation.NextTaskResponse:
        poll = Poll()
        if not context.add_callback(poll.leave):  # the agent has hung up already
            poll.leave()
        return self._handler.next_task(current_caller(), request, poll)

    def FetchPrior(self, request: federation.FetchPriorRequest, context: Context) -> Iterator[Any]:
        """Chunks, which the server makes into messages (`serialise_chunk`)."""
        return self._handler.fetch_prior(current_caller(), request)

    def SubmitAnswer(
        self, request_iterator: Iterator[Any], context: Context
    ) -> federation.SubmitAnswerResponse:
        """The server reads the parts of an upload by `read_upload`."""
        caller, uploaded = current_caller(), cast(Iterator[UploadPart], request_iterator)
        with PacedParts(uploaded, len, self._pace) as parts:
            return self._handler.submit(caller, parts)

    def Heartbeat(
        self, request: federation.HeartbeatRequest, context: Context
    ) -> federation.HeartbeatResponse:
        return self._handler.heartbeat(current_caller(), request)


class BundleServicer(bundles_pb2_grpc.BundleServiceServicer):
    def __init__(self, handler: BundleHandler) -> None:
        self._handler = handler

    def ListBundles(
        self, request: bundles_pb2.ListBundlesRequest, context: Context
    ) -> bundles_pb2.ListBundlesResponse:
        return self._handler.list_bundles(current_caller())

    def FetchBundle(self, request: bundles_pb2.FetchBundleRequest, context: Context) -> Iterator[Any]:
        """Chunks, as above."""
        return self._handler.fetch(current_caller(), request)

    def GetWithdrawals(
        self, request: bundles_pb2.GetWithdrawalsRequest, context: Context
    ) -> bundles_pb2.GetWithdrawalsResponse:
        return self._handler.get_withdrawals()


class OperatorServicer(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(
        self,
        handler: OperatorHandler,
        drops: DropHandler,
        releases: ReleaseHandler,
        purges: PurgeHandler,
        pace: PaceLimits,
    ) -> None:
        self._handler = handler
        self._drops = drops
        self._releases = releases
        self._purges = purges
        self._pace = pace

    def Invite(self, request: operator.InviteRequest, context: Context) -> operator.InviteResponse:
        return self._handler.invite(current_caller(), request)

    def ListSites(self, request: operator.ListSitesRequest, context: Context) -> operator.ListSitesResponse:
        return self._handler.list_sites()

    def RevokeSite(
        self, request: operator.RevokeSiteRequest, context: Context
    ) -> operator.RevokeSiteResponse:
        return self._handler.revoke_site(current_caller(), request)

    def CreateStudy(
        self, request: operator.CreateStudyRequest, context: Context
    ) -> operator.CreateStudyResponse:
        return self._handler.create_study(current_caller(), request)

    def ControlStudy(
        self, request: operator.ControlStudyRequest, context: Context
    ) -> operator.ControlStudyResponse:
        return self._handler.control_study(current_caller(), request)

    def GetStatus(self, request: operator.GetStatusRequest, context: Context) -> operator.GetStatusResponse:
        return self._handler.get_status(request)

    def VerifyAudit(
        self, request: operator.VerifyAuditRequest, context: Context
    ) -> operator.VerifyAuditResponse:
        return self._handler.verify_audit()

    def ExportDrop(self, request: operator.ExportDropRequest, context: Context) -> Iterator[Any]:
        """Chunks, as above."""
        return self._drops.export(current_caller(), request)

    def ImportDrop(
        self, request_iterator: Iterator[operator.ImportDropRequest], context: Context
    ) -> operator.ImportDropResponse:
        caller = current_caller()
        with PacedParts(request_iterator, _size, self._pace) as parts:
            return self._drops.take(caller, (part.chunk for part in parts))

    def ReleaseBundle(
        self, request: operator.ReleaseBundleRequest, context: Context
    ) -> operator.ReleaseBundleResponse:
        return self._releases.release(current_caller(), request)

    def ListReleased(
        self, request: operator.ListReleasedRequest, context: Context
    ) -> operator.ListReleasedResponse:
        return self._releases.list_released(request)

    def WithdrawBundle(
        self, request: operator.WithdrawBundleRequest, context: Context
    ) -> operator.WithdrawBundleResponse:
        return self._releases.withdraw(current_caller(), request)

    def MakeDownloadLink(
        self, request: operator.MakeDownloadLinkRequest, context: Context
    ) -> operator.MakeDownloadLinkResponse:
        return self._releases.make_link(current_caller(), request)

    def DownloadBundle(self, request: operator.DownloadBundleRequest, context: Context) -> Iterator[Any]:
        """Chunks, as above."""
        return self._releases.download(request)

    def PurgeStudy(
        self, request: operator.PurgeStudyRequest, context: Context
    ) -> operator.PurgeStudyResponse:
        return self._purges.purge(current_caller(), request)

    def FetchDeletion(self, request: operator.FetchDeletionRequest, context: Context) -> Iterator[Any]:
        """Chunks, as above."""
        return self._purges.fetch(request)
