"""Computations that studies owe, one after another, in a thread of their own.

A study that owes one is offered by name; when its turn comes, what it owes then is computed and the result
goes back to `StudyService.computed`, which offers it again where that made the next step due. A computation
that fails for a reason that may pass (disk, database, a killed process) waits for a pause: the study still
owes it, and `StudyService.compute_due` offers it again. One that fails three times for another reason is
reported as failed, which holds the study until the operator looks. A crash of the whole server loses nothing:
the study still owes its computation when it is loaded again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer, FitAnswer, StatisticsAnswer
from fedmap.errors import FedmapError, StaleError, StorageError
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.course.events import Compute, Computed, ComputeFailed
from fedmap.study.course.questions import due_compute, participants
from fedmap.study.record import summary_of
from fedmap_aggregator.estimation.process import Request, Result
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.store import AnswerRow, ResultRow, Store, Transaction
from fedmap_aggregator.studies.records import StepResult, newest_updates, step_of, step_to_json, told_in
from fedmap_aggregator.studies.service import Study, StudyService

_TRIES = 3
_PAUSE_MS = 2_000  # after a first failure; twice as long after each further one
_LONGEST_PAUSE_MS = 60_000
_REASON = 500
_EDITED = "the database was changed by hand, or is an older copy: restore it from a backup"


class Computes(Protocol):
    """`EstimationProcess`, as far as it is used here."""

    def start(self) -> object: ...

    def ask(self, request: Request) -> Result: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Failures:
    count: int = 0
    not_before: int = 0  # unix ms


class EstimationQueue:
    """Offer from any thread; `start` it when the studies are loaded."""

    def __init__(
        self, store: Store, process: Computes, metrics: AggregatorMetrics, clock_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._process = process
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._names: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()  # for the set
        self._failures: dict[tuple[str, str], _Failures] = {}  # by study and task
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._log = get_logger()

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def offer(self, study: str) -> None:
        """The study may owe a computation. Never waits."""
        with self._lock:
            if study in self._waiting:
                return
            self._waiting.add(study)
        self._names.put(study)

    def start(self, service: StudyService, on_failure: Callable[[], None]) -> None:
        """`on_failure` is called where the thread ends by itself, which only a defect makes it do."""
        self._thread = threading.Thread(
            target=self._run, args=(service, on_failure), name="estimation", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends a computation under way too: its study still owes it."""
        self._stopping = True
        self._process.close()
        self._names.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, service: StudyService, on_failure: Callable[[], None]) -> None:
        try:
            self._process.start()  # before anybody waits for it
            while (name := self._names.get()) is not None and not self._stopping:
                with self._lock:
                    self._waiting.discard(name)
                self.compute(service, name)
        finally:
            if not self._stopping:
                on_failure()

    def compute(self, service: StudyService, name: str) -> None:
        """Work out what the study owes now, if it owes anything and is not to wait after a failure."""
        study = service.study(name)
        compute = due_compute(study.state)
        if compute is None or self._clock_ms() < self._failed(study, compute).not_before:
            return
        result = Result(compute.kind)
        try:
            with self._store.reading() as transaction:
                answers, request = _request(transaction, study, compute)
            if compute.kind != "evaluate":  # whose answers are the result
                reach("aggregator.estimating")
                began = time.perf_counter()
                result = self._process.ask(request)
                self._metrics.took("estimate", time.perf_counter() - began)
            service.computed(name, *_outcome(study, compute, result, answers, self._clock_ms()))
        except StaleError:  # the study was aborted meanwhile
            self._drop(name, compute, result)
        except FedmapError as error:
            if not self._stopping:  # then it did not fail
                self._fail(service, study, compute, error)
        else:
            self._failures.pop((name, compute.task_id), None)

    def _drop(self, name: str, compute: Compute, result: Result) -> None:
        """What nobody will name goes at once: a purge of the study would take it for something new."""
        self._log.info("result_dropped", study=name, task=compute.task_id)
        try:
            self._store.drop_unnamed((result.digest,) if result.digest else ())
        except FedmapError as error:  # a later purge takes it
            self._log.error("result_not_deleted", study=name, task=compute.task_id, exc_info=error)

    def _failed(self, study: Study, compute: Compute) -> _Failures:
        return self._failures.get((study.state.study, compute.task_id), _Failures())

    def _fail(self, service: StudyService, study: Study, compute: Compute, error: FedmapError) -> None:
        """Let the next try wait; after some, tell the study."""
        name, task, now = study.state.study, compute.task_id, self._clock_ms()
        self._log.error("computation_failed", study=name, task=task, exc_info=error)
        self._metrics.estimation_failed(name)
        count = self._failed(study, compute).count + 1
        pause = min(_PAUSE_MS << min(count - 1, 10), _LONGEST_PAUSE_MS)
        self._failures[name, task] = _Failures(count, now + pause)
        if isinstance(error, StorageError) or count < _TRIES:
            return
        reason = error.message.partition("\n")[0][:_REASON]
        try:
            service.computed(name, ComputeFailed(now, task, reason), None)
        except FedmapError as also:  # the next failure tells it again
            self._log.error("failure_not_stored", study=name, task=task, exc_info=also)
        else:
            self._failures.pop((name, task))  # after a resume it gets its tries again


def _request(
    transaction: Transaction, study: Study, compute: Compute
) -> tuple[tuple[AnswerRow, ...], Request]:
    """The stored answers to a closed task, and what to ask of the estimation process."""
    name, terms, state = study.state.study, study.terms, study.state
    answers = transaction.answers.list(name, compute.task_id)
    rows = {row.site: row for row in answers if row.site in compute.sites and row.status == "accepted"}
    missing = [site for site in compute.sites if site not in rows]
    if missing:
        raise StorageError(
            f"{compute.task_id} of {name} counts {len(missing)} answer(s) that are not stored", hint=_EDITED
        )
    counted = [rows[site] for site in compute.sites]
    before, names = state.prior_digest, tuple[str, ...]()
    if compute.kind == "fit" and terms.plan.settings.is_consensus(compute.round, terms.rounds):
        absent = [site for site in participants(state) if site not in compute.sites]
        counted += newest_updates(transaction, name, compute.round, absent)
    if compute.kind in ("initialise", "rule"):
        pooled = _pooled(transaction.results.list(name), name)
        before, names = pooled.scaler_digest, pooled.input_names
    told = tuple(wire.read(Answer, row.answer) for row in counted)
    return answers, Request(compute.kind, terms.to_json(), told, compute.round, before, names)


def _pooled(results: Sequence[ResultRow], name: str) -> StepResult:
    for row in results:
        if row.task == "statistics":
            return step_of(row)
    raise StorageError(f"the pooled statistics of {name} are not stored", hint=_EDITED)


def _outcome(
    study: Study, compute: Compute, result: Result, answers: Sequence[AnswerRow], at: int
) -> tuple[Computed, ResultRow]:
    """The event that moves the study on, and the row that is stored with it."""
    step, event = StepResult(), Computed(at, compute.task_id, rule=result.rule)
    match result.kind:
        case "statistics":
            pooled = [row for row in answers if row.site in compute.sites and row.site not in result.excluded]
            named = (told_in(row, StatisticsAnswer).input_names for row in pooled if row.status == "accepted")
            names = next(filter(None, named), ())
            step = StepResult(scaler_digest=result.digest, rows=result.rows, input_names=names)
            event = Computed(at, compute.task_id, exclude=result.excluded)
        case "initialise" | "fit":
            event = Computed(at, compute.task_id, result.digest, result.size)
        case "rule":
            step = StepResult(reference_digest=result.digest)
    if result.made is not None:
        fits = [told_in(row, FitAnswer) for row in answers if row.status in ("accepted", "abstained")]
        members = len(participants(study.state))
        step = StepResult(
            weights=result.made.weights,
            absent=tuple(sorted(result.made.weights.keys() - set(compute.sites))),
            summary=summary_of(compute.round, members, len(compute.sites), result.made, fits),
        )
    row = ResultRow(study.state.study, compute.task_id, event.prior_digest, step_to_json(step), at)
    return event, row
