"""A small aggregator of the tests' own: real gRPC over real mutual TLS, with answers that a test chooses.

For what the real one never does: cut a stream, change bytes, lose a receipt.
"""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import FedmapError
from fedmap.files.digests import sha256_hex
from fedmap.transport.channel_options import server_options
from fedmap.transport.chunks import byte_chunks
from fedmap.transport.client import Credentials, Route
from fedmap.transport.status import to_status, to_trailers
from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap_site.identity.files import SiteIdentity
from fedmap_site.link.connection import Connection

REQUESTS = {
    wire.rpc_of(kind).path.rsplit("/")[-1]: kind
    for kind in (
        *(values.HelloRequest, values.ListStudiesRequest, values.ApproveRequest, values.LeaveRequest),
        *(values.NextTaskRequest, values.FetchPriorRequest, values.SubmitAnswerRequest),
        *(values.HeartbeatRequest, values.EnrolRequest, values.RenewRequest, values.ListBundlesRequest),
        *(values.FetchBundleRequest, values.GetWithdrawalsRequest),
    )
}
"""The calls that it serves by name, and what is asked by each."""
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


class AggregatorDouble(grpc.GenericRpcHandler):
    """Serves one site. Every attribute may be changed by a test while it runs."""

    def __init__(self, authority: Authority | None = None, hosts: tuple[str, ...] = ("localhost",)) -> None:
        self.authority = authority or Authority()
        self.hosts = hosts
        self.port = 0
        self.clock_offset_ms = 0
        self.refuse: dict[str, FedmapError] = {}  # by the name of the call
        self.studies: list[values.OfferedStudy] = []
        self.tasks: list[values.Task] = []  # handed out in order, unless they are in hand
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
        self.received: list[tuple[values.Answer, bytes]] = []
        self.lose_receipts = 0
        self.approved: list[tuple[str, str]] = []
        self.left: list[str] = []
        self.beats: list[values.HeartbeatRequest] = []
        self.polls: list[values.NextTaskRequest] = []
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

    def offer(self, *tasks: values.Task) -> None:
        """Hand out tasks to an agent that waits already."""
        self._note(lambda: self.tasks.extend(tasks))

    def start(self) -> None:
        key, certificate = self.authority.server(self.hosts)
        self._server = grpc.server(ThreadPoolExecutor(16), options=server_options())
        self._server.add_generic_rpc_handlers([self])
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

    def service(self, call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """gRPC's question who serves a call: the method of the call's name, with values."""
        name = call_details.method.rsplit("/")[-1]
        request = REQUESTS.get(name)
        if request is None:
            return None
        serve = getattr(self, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())

        def entered(asked: Any, context: Context) -> Any:
            error = self.refuse.get(name)
            if error is not None:
                status, text = to_status(error)
                context.set_trailing_metadata(to_trailers(error))
                context.abort(status, text)
            return serve(asked, context)

        call = wire.rpc_of(request)
        made: Any = grpc.unary_unary_rpc_method_handler
        if call.takes_stream:
            made = grpc.stream_unary_rpc_method_handler
        elif call.gives_stream:
            made = grpc.unary_stream_rpc_method_handler
        handler: grpc.RpcMethodHandler[Any, Any] = made(entered, wire.reader(request), wire.write)
        return handler

    def hello(self, request: values.HelloRequest, _: Context) -> values.HelloResponse:
        assert request.newest_protocol
        moment = int(now().timestamp() * 1000) + self.clock_offset_ms
        return values.HelloResponse(1, "test", moment, 1, self.release_key)

    def list_studies(self, _: values.ListStudiesRequest, __: Context) -> values.ListStudiesResponse:
        return values.ListStudiesResponse(tuple(self.studies))

    def approve(self, request: values.ApproveRequest, _: Context) -> values.ApproveResponse:
        self._note(lambda: self.approved.append((request.study, request.terms_digest)))
        return values.ApproveResponse()

    def leave(self, request: values.LeaveRequest, _: Context) -> values.LeaveResponse:
        self._note(lambda: self.left.append(request.study))
        return values.LeaveResponse()

    def next_task(self, request: values.NextTaskRequest, context: Context) -> values.NextTaskResponse:
        self._note(lambda: self.polls.append(request))
        gone = threading.Event()
        context.add_callback(lambda: self._note(gone.set))
        held = {(item.study, item.task_id, item.attempt) for item in request.in_hand}

        def next_one() -> values.Task | None:
            answered = {(a.study, a.task_id, a.attempt) for a, _ in self.received}
            for task in self.tasks:
                if (task.study, task.id, task.attempt) not in held | answered:
                    return task
            return None

        with self.changed:
            self.changed.wait_for(lambda: gone.is_set() or next_one() is not None, request.wait_seconds)
            return values.NextTaskResponse(next_one())

    def fetch_prior(
        self, request: values.FetchPriorRequest, context: Context
    ) -> Iterator[values.FetchPriorResponse]:
        self._note(lambda: self.offsets.append(request.offset))
        for number, chunk in enumerate(byte_chunks(self.priors[request.digest], request.offset)):
            if number == self.cut_prior_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            yield values.FetchPriorResponse(self.change_prior(chunk))

    def list_bundles(self, _: values.ListBundlesRequest, __: Context) -> values.ListBundlesResponse:
        listed = (
            values.Bundle(
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
        )
        return values.ListBundlesResponse(tuple(listed))

    def fetch_bundle(
        self, request: values.FetchBundleRequest, context: Context
    ) -> Iterator[values.FetchBundleResponse]:
        self._note(lambda: self.bundle_offsets.append(request.offset))
        data = self.bundles[request.name, request.version]
        if self.cut_bundle_after is not None:
            cut, self.cut_bundle_after = self.cut_bundle_after, None
            yield values.FetchBundleResponse(data[request.offset : cut])
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        for chunk in byte_chunks(data, request.offset):
            yield values.FetchBundleResponse(chunk)

    def get_withdrawals(self, _: values.GetWithdrawalsRequest, __: Context) -> values.GetWithdrawalsResponse:
        return values.GetWithdrawalsResponse(self.signed_withdrawals)

    def submit_answer(
        self, parts: Iterator[values.SubmitAnswerRequest], context: Context
    ) -> values.SubmitAnswerResponse:
        answer = next(parts).answer
        assert answer is not None
        tensors = b"".join(part.chunk or b"" for part in parts)
        assert sha256_hex(tensors) == answer.tensors_digest or not answer.tensors_digest
        self._note(lambda: self.received.append((answer, tensors)))
        if self.lose_receipts:
            self.lose_receipts -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        digest = sha256_hex(wire.write(answer))
        receipt = values.Receipt(answer.study, answer.task_id, answer.site, digest, received_unix_ms=1)
        return values.SubmitAnswerResponse(receipt)

    def heartbeat(self, request: values.HeartbeatRequest, _: Context) -> values.HeartbeatResponse:
        self._note(lambda: self.beats.append(request))
        return values.HeartbeatResponse(self.open_tasks)

    def enrol(self, request: values.EnrolRequest, _: Context) -> values.EnrolResponse:
        issued = self._issue(request.csr_pem, request.site)
        return values.EnrolResponse(issued, self.authority.ca.certificate_pem)

    def renew(self, request: values.RenewRequest, _: Context) -> values.RenewResponse:
        return values.RenewResponse(self._issue(request.csr_pem, "a"))

    def _issue(self, csr: bytes, site: str) -> bytes:
        self._note(lambda: setattr(self, "certificates_issued", self.certificates_issued + 1))
        return self.authority.ca.issue(csr, Identity("site", site), 10, now())

    def _note(self, change: Callable[[], object]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()
