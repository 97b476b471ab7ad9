"""The agent's side of the wire: one method for each call, with plain arguments; values come back.

What fails comes out as an error of the one tree. Nothing is decided here, nothing is tried again, and nothing
but a prior on its way in is written.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmap.contract.v1 import values
from fedmap.errors import IntegrityError
from fedmap.files.digests import file_sha256, is_digest
from fedmap.files.durable import storage_errors
from fedmap.process.fault_points import reach
from fedmap.transport.channel_options import CHUNK, OLDEST_PROTOCOL, PROTOCOL
from fedmap.transport.chunks import answer_part, file_chunks, tensors_part
from fedmap.transport.client import CALL_SECONDS, ContractClient, Credentials, Route

Counted = Callable[[int], None]


def _uncounted(_: int) -> None:
    return None


class Connection(ContractClient):
    """One site's channel to the aggregator."""

    def __init__(
        self,
        route: Route,
        credentials: Credentials,
        received: Counted = _uncounted,
        sent: Counted = _uncounted,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(route, credentials)
        self._received = received
        self._sent = sent
        self._heard = heard

    # Enrolment

    def enrol(self, site: str, token: str, csr_pem: bytes, version: str) -> values.EnrolResponse:
        """A certificate for a token, over the joining certificate."""
        return self.ask(values.EnrolRequest(site, token, csr_pem, version), values.EnrolResponse)

    def renew(self, csr_pem: bytes) -> bytes:
        """A certificate for a new key, over the current one."""
        return self.ask(values.RenewRequest(csr_pem), values.RenewResponse).certificate_pem

    # Studies

    def hello(self, version: str, seconds: float = CALL_SECONDS) -> values.HelloResponse:
        """Exchange versions and clocks."""
        request = values.HelloRequest(OLDEST_PROTOCOL, PROTOCOL, version)
        answer = self.ask(request, values.HelloResponse, seconds)
        self._heard()
        return answer

    def studies(self) -> tuple[values.OfferedStudy, ...]:
        """The studies that this site is invited to."""
        return self.ask(values.ListStudiesRequest(), values.ListStudiesResponse).studies

    def approve(self, study: str, terms_digest: str) -> None:
        self.ask(values.ApproveRequest(study, terms_digest), values.ApproveResponse)

    def leave(self, study: str) -> None:
        self.ask(values.LeaveRequest(study), values.LeaveResponse)

    # Bundles

    def bundles(self) -> tuple[values.Bundle, ...]:
        """The released bundles that this site may have."""
        return self.ask(values.ListBundlesRequest(), values.ListBundlesResponse).bundles

    def fetch_bundle(self, name: str, version: int, offset: int) -> Iterator[memoryview]:
        """The bytes of a bundle from an offset on, as they arrive. Nothing of them is checked here."""
        for chunk in self.chunks(values.FetchBundleRequest(name, version, offset)):
            self._received(len(chunk))
            yield chunk

    def withdrawals(self) -> bytes:
        """The signed list of withdrawn bundles."""
        return self.ask(values.GetWithdrawalsRequest(), values.GetWithdrawalsResponse).signed_list

    # Tasks

    def next_task(
        self,
        instance: values.AgentInstance,
        in_hand: Sequence[values.TaskInHand],
        wait_seconds: int,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> values.Task | None:
        """The next task, or None: after the wait, or as soon as `interrupted` says so."""
        request = values.NextTaskRequest(instance, tuple(in_hand), wait_seconds)
        longest = wait_seconds + CALL_SECONDS
        answer = self.ask_unless(interrupted, request, values.NextTaskResponse, longest)
        if answer is None:
            return None
        self._heard()
        return answer.task

    def heartbeat(self, request: values.HeartbeatRequest) -> bool:
        """A sign of life; whether the task it names is still open."""
        answer = self.ask(request, values.HeartbeatResponse)
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
        if self._append(partial, study, digest, size) != digest:
            partial.unlink(missing_ok=True)
            raise IntegrityError(
                "the prior that arrived is not the one that the task names",
                hint="It is fetched again. If this goes on, something on the way changes the bytes.",
            )
        with storage_errors(whole):
            partial.replace(whole)
        return whole

    def submit(self, answer: bytes, tensors: Path | None) -> values.Receipt:
        """Send one answer with its tensors; the receipt means that it is on the aggregator's disk."""
        parts = self._parts(answer, tensors)
        done = self.upload(values.SubmitAnswerRequest, parts, values.SubmitAnswerResponse)
        reach("agent.uploaded_without_receipt")
        return done.receipt or values.Receipt()

    def _append(self, partial: Path, study: str, digest: str, size: int) -> str:
        """Get the missing bytes of a prior; the digest of them all. Never takes more than was announced."""
        running = hashlib.sha256()
        with storage_errors(partial), partial.open("a+b", buffering=0) as file:
            have = file.seek(0, os.SEEK_END)
            if have > size:
                file.truncate(0)
                have = 0
            file.seek(0)
            while kept := file.read(CHUNK):
                running.update(kept)
            request = values.FetchPriorRequest(study, digest, have)
            for chunk in self.chunks(request) if have < size else ():
                have += len(chunk)
                if have > size:
                    break
                rest = chunk
                while rest:  # a disk that is nearly full may take a part of it
                    rest = rest[file.write(rest) :]
                running.update(chunk)
                self._received(len(chunk))
        return running.hexdigest() if have == size else ""

    def _parts(self, answer: bytes, tensors: Path | None) -> Iterator[bytes]:
        """The messages of an upload."""
        yield answer_part(answer)
        if tensors is None:
            return
        sent = 0
        for chunk in file_chunks(tensors):
            if sent <= tensors.stat().st_size // 2 < sent + len(chunk):
                reach("agent.half_uploaded")
            yield tensors_part(chunk)
            sent += len(chunk)
            self._sent(len(chunk))


SKEW_SECONDS = 60.0


@dataclass(frozen=True)
class Skew:
    """Positive: this machine's clock is ahead."""

    seconds: float

    @property
    def matters(self) -> bool:
        return abs(self.seconds) > SKEW_SECONDS

    def __str__(self) -> str:
        return f"{abs(self.seconds):.0f} s {'ahead of' if self.seconds > 0 else 'behind'} the aggregator's"


def skew_of(aggregator_unix_ms: int, now: datetime.datetime) -> Skew:
    return Skew(now.timestamp() - aggregator_unix_ms / 1000)
