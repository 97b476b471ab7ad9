"""One answer from its first message to its receipt, over the network or as a file.

In this order, so that a crash at any point loses nothing that was promised:

1. an answer that was stored before gets its first receipt (or its refusal) again, also when the task is
   closed;
2. the header: is the task open to this site, and is the announced size one that the plan gives?
3. the bytes go to a temporary file with a running digest; size and digest must be those announced;
4. the gate judges the content;
5. the tensors become a blob: fsync, rename;
6. one transaction stores the answer, the coordinator's state and the audit entry;
7. only then there is a receipt.

A refused answer goes to quarantine, is stored as rejected, and the reason goes to that site: the round
goes on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from fedmap.contract.v1.values import Answer, Receipt
from fedmap.errors import (
    ConflictError,
    IntegrityError,
    LimitError,
    ModelError,
    NotFoundError,
    RejectedError,
    StaleError,
    StateError,
)
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import DurableWriter
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.course.coordinator import advance
from fedmap.study.course.events import Answered
from fedmap.study.course.state import AnswerStatus, OpenTask
from fedmap_aggregator.gate.headers import GateLimits, check_header
from fedmap_aggregator.gate.updates import CheckedAnswer, check_answer
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.store import FINAL, AnswerRow, RefusalRow, Store, Transaction
from fedmap_aggregator.studies.service import Note, Study, StudyService

Reason = Literal["header", "tensors", "content"]
"""What was wrong with a refused answer: it does not belong here, or its tensors or its figures cannot be."""
_MOST_REFUSALS = 20  # or failures, of one site in one attempt of a task: more would only fill the disk
_MOST_KEPT = 64 * 1024  # bytes of a refused message that are worth keeping
_RESEND = "send the answer again; if it goes on, look for a proxy that changes traffic or a bad disk"


@dataclass(frozen=True)
class _Verdict:
    """What the gate came to."""

    status: AnswerStatus
    norm: float | None = None
    code: str = ""  # of a failure or refusal
    reason: str = ""


@dataclass(frozen=True)
class AnswerIntake:
    """Takes answers in. Safe to call from any thread."""

    service: StudyService
    store: Store
    limits: GateLimits
    metrics: AggregatorMetrics
    clock_ms: Callable[[], int]
    _refusals: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, site: str, answer: Answer, data: bytes) -> Upload | Receipt:
        """Steps 1 and 2: a receipt where nothing needs to be sent, else the upload to write into.

        `data` is the answer as it arrived; it is kept like this, and known by its digest.
        """
        study = self.service.study(answer.study)
        if site not in study.state.members:
            raise NotFoundError(
                f"{site} is not invited to the study {study.state.study}",
                hint="ask the operator to invite the site",
            )
        digest = sha256_hex(data)
        stored = self._stored(site, answer, digest)  # (1)
        if stored is not None:
            return _receipt(stored)
        task = self._open_task(study, site, answer)  # (2)
        self._check_patience(site, answer)
        upload = Upload(self, study, task, site, answer, data, digest)
        try:
            check_header(study.terms, task, answer, site, self.limits, study.model)
        except RejectedError as error:
            upload.refuse(error, "header")
            raise
        return upload

    def count_refusal(self, site: str, answer: Answer) -> None:
        with self._lock:
            self._refusals[answer.study, answer.task_id, answer.attempt, site] += 1

    def _check_patience(self, site: str, answer: Answer) -> None:
        if self._refusals[answer.study, answer.task_id, answer.attempt, site] >= _MOST_REFUSALS:
            raise LimitError(
                f"{_MOST_REFUSALS} answers of {site} to {answer.task_id} were refused, or were failures",
                hint="correct the cause, then wait until the task is asked for again",
            )

    def _stored(self, site: str, answer: Answer, digest: str) -> AnswerRow | None:
        with self.store.reading() as transaction:
            return stored_answer(transaction, site, answer, digest)

    def _open_task(self, study: Study, site: str, answer: Answer) -> OpenTask:
        """The task, if an answer would be taken now; the coordinator's own refusal otherwise."""
        trial = Answered(self.clock_ms(), site, answer.task_id, answer.attempt, "failed")
        advance(study.state, trial)
        task = study.state.task
        if task is None:
            raise NotFoundError("no task is open", hint="ask for the next task and answer that")
        return task


def stored_answer(transaction: Transaction, site: str, answer: Answer, digest: str) -> AnswerRow | None:
    """The first copy of this answer. A refused one is refused again; another accepted one is a conflict."""
    same = transaction.answers.find(answer.study, answer.task_id, site, digest)
    if same is not None:
        if same.status == "rejected":
            raise RejectedError(same.reason, hint="this answer was refused before; correct its cause first")
        return same
    standing = transaction.answers.get(answer.study, answer.task_id, site)
    if standing is not None and standing.status in FINAL:
        raise ConflictError(
            f"another answer of {site} to {answer.task_id} was accepted before",
            hint="nothing needs to be sent; if two agents run for this site, stop one of them",
        )
    return None


@dataclass
class Upload:
    """The tensors of one answer on their way in. Use in a `with` block: what is not finished is removed."""

    _intake: AnswerIntake
    _study: Study
    _task: OpenTask
    _site: str
    _answer: Answer
    _data: bytes
    _digest: str
    _writer: DurableWriter | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _began: float = field(default_factory=time.perf_counter)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def write(self, chunk: bytes | memoryview) -> None:
        """Step 3. More bytes than announced are refused at once."""
        if self._writer is None:
            receiving = self._intake.store.blobs.receive(self._answer.tensors_size)
            self._writer = self._open.enter_context(receiving)
        if self._writer.size + len(chunk) > self._answer.tensors_size:
            raise IntegrityError("more bytes arrive than the answer announces", hint=_RESEND)
        self._writer.write(chunk)
        self._intake.metrics.received(len(chunk))
        reach("aggregator.receiving")

    def finish(self) -> Receipt:
        """Steps 3 to 7."""
        self._check_bytes()
        self._intake.metrics.took("receive", time.perf_counter() - self._began)
        try:
            with self._intake.metrics.timed("gate"):
                checked = self._judge()  # (4)
        except RejectedError as error:
            self.refuse(error, "tensors" if isinstance(error.__cause__, ModelError) else "content")
            raise
        verdict = _verdict(checked, self._answer)
        with self._intake.metrics.timed("store"):
            if self._writer is not None:
                self._intake.store.blobs.keep(self._writer, self._answer.tensors_digest)  # (5)
            reach("aggregator.between_blob_and_commit")
            row = self._commit_or_drop(verdict)  # (6)
        if row.status == "failed":
            self._intake.count_refusal(self._site, self._answer)
            self._intake.metrics.failed(self._study.state.study, self._site, verdict.code)
        reach("aggregator.received")
        return _receipt(row)  # (7)

    def refuse(self, error: RejectedError, reason: Reason) -> None:
        """Puts the bytes away and stores the refusal. The caller raises the error to the site."""
        self._intake.metrics.rejected(self._study.state.study, self._site, reason)
        self._intake.count_refusal(self._site, self._answer)
        if self._writer is not None:
            self._intake.store.blobs.quarantine(self._writer)
        self._commit(_Verdict("rejected", None, error.code, error.message))

    def _check_bytes(self) -> None:
        size = self._writer.size if self._writer is not None else 0
        if size != self._answer.tensors_size:
            raise IntegrityError(
                f"{size:,} bytes arrived, the answer announces {self._answer.tensors_size:,}", hint=_RESEND
            )
        if self._writer is not None and self._writer.digest != self._answer.tensors_digest:
            raise IntegrityError("the bytes do not have the digest that the answer announces", hint=_RESEND)

    def _judge(self) -> CheckedAnswer:
        """The disk takes the bytes while the gate reads them from memory; both must be through."""
        if self._writer is None:
            return self._check(None)
        with ThreadPoolExecutor(1, thread_name_prefix="sync") as pool:
            synced = pool.submit(self._writer.finish)
            checked = self._check(self._writer.path)
            synced.result()
        return checked

    def _check(self, path: Path | None) -> CheckedAnswer:
        return check_answer(
            self._study.terms,
            self._study.model,
            self._task,
            self._answer,
            path,
            self._intake.limits,
            self._study.state.cohort_norm,
        )

    def _commit_or_drop(self, verdict: _Verdict) -> AnswerRow:
        """An answer that came too late leaves no tensors: a purge of the study would take them for new."""
        try:
            return self._commit(verdict)
        except (StaleError, StateError, ConflictError, NotFoundError):
            if self._writer is not None:
                self._intake.store.drop_unnamed((self._answer.tensors_digest,))
            raise

    def _commit(self, verdict: _Verdict) -> AnswerRow:
        intake, answer, name = self._intake, self._answer, self._study.state.study
        now = intake.clock_ms()
        kept = verdict.status != "rejected" or len(self._data) <= _MOST_KEPT
        row = AnswerRow(
            study=name,
            task=answer.task_id,
            site=self._site,
            attempt=answer.attempt,
            digest=self._digest,
            status=verdict.status,
            answer=self._data if kept else b"",
            tensors_digest=answer.tensors_digest,
            norm=verdict.norm,
            reason=verdict.reason,
            received_at=now,
        )
        event = Answered(
            now, self._site, answer.task_id, answer.attempt, verdict.status, verdict.norm, verdict.reason
        )
        detail = {"task": answer.task_id, "digest": self._digest, "bytes": str(answer.tensors_size)}
        note = Note(f"site:{self._site}", f"answer.{verdict.status}", name, detail)
        earlier: list[AnswerRow] = []

        def came_before() -> bool:
            """A second copy came at the same time and was first."""
            with intake.store.reading() as transaction:
                same = stored_answer(transaction, self._site, answer, self._digest)
            earlier.extend([] if same is None else [same])
            return same is not None

        def also(transaction: Transaction) -> None:
            transaction.answers.put(row)
            if verdict.code:
                transaction.refusals.add(
                    RefusalRow(name, answer.task_id, self._site, verdict.code, verdict.reason, now)
                )

        intake.service.apply(name, event, note, also, came_before)
        if earlier:
            return earlier[0]
        get_logger().info(
            "answer_stored",
            study=name,
            task=answer.task_id,
            site=self._site,
            status=verdict.status,
            digest=self._digest,
            bytes=answer.tensors_size,
        )
        return row


def _verdict(checked: CheckedAnswer, answer: Answer) -> _Verdict:
    if answer.failure is not None:
        return _Verdict("failed", None, answer.failure.code, answer.failure.reason)
    return _Verdict(checked.status, checked.norm)


def _receipt(row: AnswerRow) -> Receipt:
    return Receipt(
        study=row.study,
        task_id=row.task,
        site=row.site,
        answer_digest=row.digest,
        received_unix_ms=row.received_at,
    )
