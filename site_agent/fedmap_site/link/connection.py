"""The agent's side of the wire, and its only module that knows gRPC: dial out, call, translate failures.

Every call is one method with plain arguments; what fails comes out as an error of the one tree. The channel
uses exactly the proxy and the authority it is given: nothing from the environment. Nothing is decided here,
nothing is tried again, and nothing but a prior on its way in is written.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc

from fedmap.contract.v1 import bundles_pb2, enrolment_pb2, enrolment_pb2_grpc
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1.bundles_pb2_grpc import BundleServiceStub
from fedmap.contract.v1.federation_pb2_grpc import FederationServiceStub
from fedmap.errors import FedmapError, IntegrityError
from fedmap.files.digests import file_sha256, is_digest
from fedmap.files.durable import storage_error
from fedmap.process.fault_points import reach
from fedmap.transport.channel_options import CHUNK, client_options
from fedmap.transport.chunk_messages import read_chunk, serialise_upload
from fedmap.transport.chunks import file_chunks
from fedmap.transport.protocol_versions import OLDEST_PROTOCOL, PROTOCOL
from fedmap.transport.status import raise_typed

# Short calls answer from memory or one database read. A transfer has as long as the aggregator gives it.
CALL_SECONDS = 30.0
TRANSFER_SECONDS = 3600.0
LOOK_UP_SECONDS = 0.5  # how often a waiting long poll asks whether it should go on waiting

FETCH_PRIOR = "/fedmap.v1.FederationService/FetchPrior"
FETCH_BUNDLE = "/fedmap.v1.BundleService/FetchBundle"
SUBMIT_ANSWER = "/fedmap.v1.FederationService/SubmitAnswer"
_Answer = TypeVar("_Answer")
Counted = Callable[[int], None]


def _uncounted(_: int) -> None:
    return None


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


@dataclass(frozen=True)
class Greeting:
    """What the aggregator says of itself."""

    protocol: int
    software_version: str
    time_unix_ms: int
    tier: int
    release_key: str = ""
    """Fingerprint of the key that signs bundles; empty where there is none yet."""


class Connection:
    """One channel to the aggregator. Its methods may be called from several threads."""

    def __init__(
        self,
        route: Route,
        credentials: Credentials,
        received: Counted = _uncounted,
        sent: Counted = _uncounted,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._route = route
        self._received = received
        self._sent = sent
        self._heard = heard
        self._lock = threading.Lock()
        self._channel = _open(route, credentials)

    def renew_with(self, credentials: Credentials) -> None:
        """Dial anew with another certificate; calls under way on the old channel are cut off."""
        fresh = _open(self._route, credentials)
        with self._lock:
            old, self._channel = self._channel, fresh
        old.close()

    def close(self) -> None:
        with self._lock:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Enrolment

    def enrol(self, site: str, token: str, csr_pem: bytes, version: str) -> tuple[bytes, bytes]:
        """A certificate for a token, over the joining certificate: (certificate, authority)."""
        request = enrolment_pb2.EnrolRequest(
            site=site, token=token, csr_pem=csr_pem, software_version=version
        )
        stub = enrolment_pb2_grpc.EnrolmentServiceStub(self._now())
        answer = self._typed(lambda: stub.Enrol(request, timeout=CALL_SECONDS))
        return answer.certificate_pem, answer.ca_pem

    def renew(self, csr_pem: bytes) -> bytes:
        """A certificate for a new key, over the current one."""
        stub = enrolment_pb2_grpc.EnrolmentServiceStub(self._now())
        request = enrolment_pb2.RenewRequest(csr_pem=csr_pem)
        return self._typed(lambda: stub.Renew(request, timeout=CALL_SECONDS)).certificate_pem

    # Studies

    def hello(self, version: str, seconds: float = CALL_SECONDS) -> Greeting:
        """Exchange versions and clocks."""
        request = pb.HelloRequest(
            oldest_protocol=OLDEST_PROTOCOL, newest_protocol=PROTOCOL, software_version=version
        )
        answer = self._typed(lambda: self._stub().Hello(request, timeout=seconds))
        self._heard()
        return Greeting(
            answer.protocol,
            answer.software_version,
            answer.time_unix_ms,
            answer.tier,
            answer.release_key_fingerprint,
        )

    def studies(self) -> tuple[pb.OfferedStudy, ...]:
        """The studies that this site is invited to."""
        request = pb.ListStudiesRequest()
        return tuple(self._typed(lambda: self._stub().ListStudies(request, timeout=CALL_SECONDS)).studies)

    def approve(self, study: str, terms_digest: str) -> None:
        request = pb.ApproveRequest(study=study, terms_digest=terms_digest)
        self._typed(lambda: self._stub().Approve(request, timeout=CALL_SECONDS))

    def leave(self, study: str) -> None:
        request = pb.LeaveRequest(study=study)
        self._typed(lambda: self._stub().Leave(request, timeout=CALL_SECONDS))

    # Bundles

    def bundles(self) -> tuple[bundles_pb2.Bundle, ...]:
        """The released bundles that this site may have."""
        stub, request = BundleServiceStub(self._now()), bundles_pb2.ListBundlesRequest()
        return tuple(self._typed(lambda: stub.ListBundles(request, timeout=CALL_SECONDS)).bundles)

    def fetch_bundle(self, name: str, version: int, offset: int) -> Iterator[memoryview]:
        """The bytes of a bundle from an offset on, as they arrive. Nothing of them is checked here."""
        request = bundles_pb2.FetchBundleRequest(name=name, version=version, offset=offset)
        download = self._now().unary_stream(
            FETCH_BUNDLE,
            request_serializer=bundles_pb2.FetchBundleRequest.SerializeToString,
            response_deserializer=read_chunk,
        )
        call = download(request, timeout=TRANSFER_SECONDS)
        try:
            for chunk in call:
                self._received(len(chunk))
                yield chunk
        except grpc.RpcError as error:
            raise_typed(error)
        finally:
            call.cancel()  # changes nothing on a call that is over

    def withdrawals(self) -> bytes:
        """The signed list of withdrawn bundles."""
        stub, request = BundleServiceStub(self._now()), bundles_pb2.GetWithdrawalsRequest()
        return self._typed(lambda: stub.GetWithdrawals(request, timeout=CALL_SECONDS)).signed_list

    # Tasks

    def next_task(
        self,
        instance: pb.AgentInstance,
        in_hand: Iterable[pb.TaskInHand],
        wait_seconds: int,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> pb.Task | None:
        """The next task, or None: after the wait, or as soon as `interrupted` says so."""
        request = pb.NextTaskRequest(instance=instance, in_hand=in_hand, wait_seconds=wait_seconds)

        def ask() -> pb.Task | None:
            call = self._stub().NextTask.future(request, timeout=wait_seconds + CALL_SECONDS)
            done = threading.Event()
            call.add_done_callback(lambda _: done.set())
            try:
                while not done.wait(LOOK_UP_SECONDS):
                    if interrupted():
                        return None
                answer = call.result()
            finally:
                call.cancel()  # changes nothing on a call that is over
            self._heard()
            return answer.task if answer.HasField("task") else None

        return self._typed(ask)

    def heartbeat(self, request: pb.HeartbeatRequest) -> bool:
        """A sign of life; whether the task it names is still open."""
        answer = self._typed(lambda: self._stub().Heartbeat(request, timeout=CALL_SECONDS))
        self._heard()
        return answer.task_open

    def fetch_prior(self, study: str, digest: str, size: int, folder: Path) -> Path:
        """The prior as a checked file in `folder`. What an earlier attempt left is gone on with."""
        if not is_digest(digest):
            raise IntegrityError(
                "the task names its prior by something that is not a digest",
                hint="Tell the operator: the aggregator and this agent do not fit together.",
            )
        whole = folder / f"{digest}.safetensors"
        if whole.exists() and file_sha256(whole) == digest:
            return whole
        partial = folder / f"{digest}.partial.safetensors"
        if self._typed(lambda: self._append(partial, study, digest, size)) != digest:
            partial.unlink(missing_ok=True)
            raise IntegrityError(
                "the prior that arrived is not the one that the task names",
                hint="It is fetched again. If this goes on, something on the way changes the bytes.",
            )
        try:
            partial.replace(whole)
        except OSError as error:
            raise storage_error(error, whole) from error
        return whole

    def submit(self, answer: pb.Answer, tensors: Path | None) -> pb.Receipt:
        """Send one answer with its tensors; the receipt means that it is on the aggregator's disk."""
        failures: list[FedmapError] = []
        requests = self._parts(answer, tensors, failures)
        try:
            receipt = self._typed(lambda: self._upload()(requests, timeout=TRANSFER_SECONDS)).receipt
        except FedmapError as error:
            # What went wrong here explains what the aggregator then complained about.
            raise (failures or [error])[0] from None
        reach("agent.uploaded_without_receipt")
        return receipt

    def _append(self, partial: Path, study: str, digest: str, size: int) -> str:
        """Get the missing bytes of a prior; the digest of them all. Never takes more than was announced."""
        running = hashlib.sha256()
        try:
            with partial.open("a+b", buffering=0) as file:
                have = file.seek(0, os.SEEK_END)
                if have > size:
                    file.truncate(0)
                    have = 0
                file.seek(0)
                while kept := file.read(CHUNK):
                    running.update(kept)
                request = pb.FetchPriorRequest(study=study, digest=digest, offset=have)
                call = self._download()(request, timeout=TRANSFER_SECONDS) if have < size else ()
                for chunk in call:
                    have += len(chunk)
                    if have > size:
                        break
                    rest = chunk
                    while rest:  # a disk that is nearly full may take a part of it
                        rest = rest[file.write(rest) :]
                    running.update(chunk)
                    self._received(len(chunk))
        except OSError as error:
            raise storage_error(error, partial) from error
        return running.hexdigest() if have == size else ""

    def _parts(
        self, answer: pb.Answer, tensors: Path | None, failures: list[FedmapError]
    ) -> Iterator[pb.SubmitAnswerRequest | bytes]:
        """The messages of an upload. gRPC swallows what its own thread raises here, hence `failures`."""
        yield pb.SubmitAnswerRequest(answer=answer)
        if tensors is None:
            return
        sent, half = 0, answer.tensors_size // 2
        try:
            for chunk in file_chunks(tensors):
                if sent <= half < sent + len(chunk):
                    reach("agent.half_uploaded")
                yield chunk
                sent += len(chunk)
                self._sent(len(chunk))
        except FedmapError as error:
            failures.append(error)

    def _now(self) -> grpc.Channel:
        with self._lock:
            return self._channel

    def _download(self) -> grpc.UnaryStreamMultiCallable[pb.FetchPriorRequest, memoryview]:
        """FetchPrior as in the stub, but that each part is its chunk."""
        return self._now().unary_stream(
            FETCH_PRIOR,
            request_serializer=pb.FetchPriorRequest.SerializeToString,
            response_deserializer=read_chunk,
        )

    def _upload(
        self,
    ) -> grpc.StreamUnaryMultiCallable[pb.SubmitAnswerRequest | bytes, pb.SubmitAnswerResponse]:
        """SubmitAnswer as in the stub, but that a chunk is sent as it is."""
        return self._now().stream_unary(
            SUBMIT_ANSWER,
            request_serializer=serialise_upload,
            response_deserializer=pb.SubmitAnswerResponse.FromString,
        )

    def _stub(self) -> FederationServiceStub:
        return FederationServiceStub(self._now())

    def _typed(self, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call()
        except grpc.RpcError as error:
            raise_typed(error)


def _open(route: Route, credentials: Credentials) -> grpc.Channel:
    secure = grpc.ssl_channel_credentials(
        root_certificates=credentials.authority,
        private_key=credentials.key,
        certificate_chain=credentials.certificate,
    )
    options = [*client_options(route.proxy), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(route.address, secure, options=options)
