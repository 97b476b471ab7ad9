"""A small aggregator of the tests' own: real gRPC over real mutual TLS, with answers that a test chooses.

For what the real one never does: cut a stream, change bytes, lose a receipt.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from fedmap.contract.v1 import bundles_pb2, bundles_pb2_grpc, enrolment_pb2, enrolment_pb2_grpc
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1.federation_pb2_grpc import (
    FederationServiceServicer,
    add_FederationServiceServicer_to_server,
)
from fedmap.errors import FedmapError
from fedmap.files.digests import sha256_hex
from fedmap.study.answer_names import answer_digest
from fedmap.transport.channel_options import server_options
from fedmap.transport.chunks import byte_chunks
from fedmap.transport.status import to_status, to_trailers
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap_site.identity.files import SiteIdentity
from fedmap_site.link.connection import Connection, Credentials, Route

Context = Any  # grpc.ServicerContext; its generic form differs between stub versions


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass
class Authority:
    """A certificate authority with what it issued."""

    ca: CertificateAuthority = field(
        default_factory=lambda: CertificateAuthority.create("Test federation", 30, now())[0]
    )

    def site(
        self, name: str = "a", days: float = 10, issued: datetime.datetime | None = None
    ) -> SiteIdentity:
        key = new_key()
        certificate = self.ca.issue(key.public_key(), Identity("site", name), days, issued or now())
        return SiteIdentity(key_pem(key), certificate, self.ca.certificate_pem)

    def credentials(self, name: str = "a") -> Credentials:
        identity = self.site(name)
        return Credentials(identity.certificate, identity.key, identity.authority)

    def joining_file(self, path: Path) -> Path:
        key = new_key()
        certificate = self.ca.issue(key.public_key(), Identity("joining"), 30, now())
        path.write_bytes(self.ca.certificate_pem + certificate + key_pem(key))
        return path

    def server(self, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> tuple[bytes, bytes]:
        key = new_key()
        certificate = self.ca.issue(key.public_key(), Identity("aggregator"), 10, now(), hosts)
        return key_pem(key), certificate


class AggregatorDouble(
    FederationServiceServicer,
    enrolment_pb2_grpc.EnrolmentServiceServicer,
    bundles_pb2_grpc.BundleServiceServicer,
):
    """Serves one site. Every attribute may be changed by a test while it runs."""

    def __init__(self, authority: Authority | None = None, hosts: tuple[str, ...] = ("localhost",)) -> None:
        self.authority = authority or Authority()
        self.hosts = hosts
        self.port = 0
        self.clock_offset_ms = 0
        self.refuse: dict[str, FedmapError] = {}  # by the name of the call
        self.studies: list[pb.OfferedStudy] = []
        self.tasks: list[pb.Task] = []  # handed out in order, unless they are in hand
        self.priors: dict[str, bytes] = {}  # by digest
        self.change_prior: Callable[[bytes], bytes] = lambda chunk: chunk
        self.cut_prior_after: int | None = None  # chunks
        self.offsets: list[int] = []
        self.release_key = ""
        self.bundles: dict[tuple[str, int], bytes] = {}
        self.withdrawn: dict[tuple[str, int], str] = {}
        self.signed_withdrawals = b""
        self.cut_bundle_after: int | None = None  # bytes
        self.bundle_offsets: list[int] = []
        self.received: list[tuple[pb.Answer, bytes]] = []
        self.lose_receipts = 0
        self.approved: list[tuple[str, str]] = []
        self.left: list[str] = []
        self.beats: list[pb.HeartbeatRequest] = []
        self.polls: list[pb.NextTaskRequest] = []
        self.certificates_issued = 0
        self.open_tasks = True
        self.changed = threading.Condition()

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def connection(self, name: str = "a") -> Connection:
        return Connection(Route(self.address), self.authority.credentials(name))

    def wait_for(self, happened: Callable[[], object], seconds: float = 30.0) -> None:
        """Until something that a call changes is so."""
        with self.changed:
            assert self.changed.wait_for(lambda: bool(happened()), seconds), "it did not happen"

    def offer(self, *tasks: pb.Task) -> None:
        """Hand out tasks to an agent that waits already."""
        self._note(lambda: self.tasks.extend(tasks))

    def start(self) -> None:
        key, certificate = self.authority.server(self.hosts)
        self._server = grpc.server(ThreadPoolExecutor(16), options=server_options())
        add_FederationServiceServicer_to_server(self, self._server)
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(self, self._server)
        bundles_pb2_grpc.add_BundleServiceServicer_to_server(self, self._server)
        secure = grpc.ssl_server_credentials(
            [(key, certificate)], self.authority.ca.certificate_pem, require_client_auth=True
        )
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", secure)
        self._server.start()

    def stop(self) -> None:
        with self.changed:
            self.changed.notify_all()
        self._server.stop(0).wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def Hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloResponse:  # noqa: N802
        assert request.newest_protocol
        self._enter("Hello", context)
        moment = int(now().timestamp() * 1000) + self.clock_offset_ms
        return pb.HelloResponse(
            protocol=1,
            software_version="test",
            time_unix_ms=moment,
            tier=1,
            release_key_fingerprint=self.release_key,
        )

    def ListStudies(  # noqa: N802
        self,
        request: pb.ListStudiesRequest,  # noqa: ARG002
        context: Context,
    ) -> pb.ListStudiesResponse:
        self._enter("ListStudies", context)
        return pb.ListStudiesResponse(studies=self.studies)

    def Approve(self, request: pb.ApproveRequest, context: Context) -> pb.ApproveResponse:  # noqa: N802
        self._enter("Approve", context)
        self._note(lambda: self.approved.append((request.study, request.terms_digest)))
        return pb.ApproveResponse()

    def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:  # noqa: N802
        self._enter("Leave", context)
        self._note(lambda: self.left.append(request.study))
        return pb.LeaveResponse()

    def NextTask(self, request: pb.NextTaskRequest, context: Context) -> pb.NextTaskResponse:  # noqa: N802
        self._enter("NextTask", context)
        self._note(lambda: self.polls.append(request))
        gone = threading.Event()
        context.add_callback(lambda: self._note(gone.set))
        held = {(item.study, item.task_id, item.attempt) for item in request.in_hand}

        def next_one() -> pb.Task | None:
            answered = {(a.study, a.task_id, a.attempt) for a, _ in self.received}
            for task in self.tasks:
                if (task.study, task.id, task.attempt) not in held | answered:
                    return task
            return None

        with self.changed:
            self.changed.wait_for(lambda: gone.is_set() or next_one() is not None, request.wait_seconds)
            return pb.NextTaskResponse(task=next_one())

    def FetchPrior(  # noqa: N802
        self, request: pb.FetchPriorRequest, context: Context
    ) -> Iterator[pb.FetchPriorResponse]:
        self._enter("FetchPrior", context)
        self._note(lambda: self.offsets.append(request.offset))
        for number, chunk in enumerate(byte_chunks(self.priors[request.digest], request.offset)):
            if number == self.cut_prior_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            yield pb.FetchPriorResponse(chunk=self.change_prior(chunk))

    def ListBundles(  # noqa: N802
        self,
        request: bundles_pb2.ListBundlesRequest,  # noqa: ARG002
        context: Context,
    ) -> bundles_pb2.ListBundlesResponse:
        self._enter("ListBundles", context)
        listed = [
            bundles_pb2.Bundle(
                name=name,
                version=version,
                file_name=f"{name}-{version}.fedmap",
                size=len(data),
                sha256=sha256_hex(data),
                tier=2,
                title="A tiny study",
                expires_unix_ms=int(now().timestamp() * 1000) + 86_400_000,
                withdrawn=self.withdrawn.get((name, version), ""),
            )
            for (name, version), data in sorted(self.bundles.items())
        ]
        return bundles_pb2.ListBundlesResponse(bundles=listed)

    def FetchBundle(  # noqa: N802
        self, request: bundles_pb2.FetchBundleRequest, context: Context
    ) -> Iterator[bundles_pb2.FetchBundleResponse]:
        self._enter("FetchBundle", context)
        self._note(lambda: self.bundle_offsets.append(request.offset))
        data = self.bundles[request.name, request.version]
        if self.cut_bundle_after is not None:
            cut, self.cut_bundle_after = self.cut_bundle_after, None
            yield bundles_pb2.FetchBundleResponse(chunk=data[request.offset : cut])
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        for chunk in byte_chunks(data, request.offset):
            yield bundles_pb2.FetchBundleResponse(chunk=chunk)

    def GetWithdrawals(  # noqa: N802
        self,
        request: bundles_pb2.GetWithdrawalsRequest,  # noqa: ARG002
        context: Context,
    ) -> bundles_pb2.GetWithdrawalsResponse:
        self._enter("GetWithdrawals", context)
        return bundles_pb2.GetWithdrawalsResponse(signed_list=self.signed_withdrawals)

    def SubmitAnswer(  # noqa: N802
        self, request_iterator: Iterator[pb.SubmitAnswerRequest], context: Context
    ) -> pb.SubmitAnswerResponse:
        self._enter("SubmitAnswer", context)
        answer = next(request_iterator).answer
        tensors = b"".join(part.chunk for part in request_iterator)
        assert sha256_hex(tensors) == answer.tensors_digest or not answer.tensors_digest
        self._note(lambda: self.received.append((answer, tensors)))
        if self.lose_receipts:
            self.lose_receipts -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        receipt = pb.Receipt(
            study=answer.study,
            task_id=answer.task_id,
            site=answer.site,
            answer_digest=answer_digest(answer),
            received_unix_ms=1,
        )
        return pb.SubmitAnswerResponse(receipt=receipt)

    def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:  # noqa: N802
        self._enter("Heartbeat", context)
        self._note(lambda: self.beats.append(request))
        return pb.HeartbeatResponse(task_open=self.open_tasks)

    def Enrol(  # noqa: N802
        self, request: enrolment_pb2.EnrolRequest, context: Context
    ) -> enrolment_pb2.EnrolResponse:
        self._enter("Enrol", context)
        return enrolment_pb2.EnrolResponse(
            certificate_pem=self._issue(request.csr_pem, request.site),
            ca_pem=self.authority.ca.certificate_pem,
        )

    def Renew(  # noqa: N802
        self, request: enrolment_pb2.RenewRequest, context: Context
    ) -> enrolment_pb2.RenewResponse:
        self._enter("Renew", context)
        return enrolment_pb2.RenewResponse(certificate_pem=self._issue(request.csr_pem, "a"))

    def _issue(self, csr: bytes, site: str) -> bytes:
        self._note(lambda: setattr(self, "certificates_issued", self.certificates_issued + 1))
        return self.authority.ca.issue(csr, Identity("site", site), 10, now())

    def _enter(self, call: str, context: Context) -> None:
        error = self.refuse.get(call)
        if error is not None:
            status, text = to_status(error)
            context.set_trailing_metadata(to_trailers(error))
            context.abort(status, text)

    def _note(self, change: Callable[[], object]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()
