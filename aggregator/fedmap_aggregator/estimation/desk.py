"""Computations under way: each owed one is handed to the estimation process once, and its result
reported once.

A computation that fails for a reason that may pass (disk, database, a killed process) is offered again
after a pause: the study still owes it, and `StudyService.compute_due` asks again. One that fails three
times for another reason is reported as failed, which holds the study until the operator looks. A crash of
the whole server loses nothing: the study is still computing when it is loaded again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Protocol

from fedmap.errors import FedmapError, StaleError, StorageError
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.course.events import Compute, ComputeFailed
from fedmap_aggregator.course.computation import count_without_answer, outcome_of, request_for, rounds_before
from fedmap_aggregator.course.messages import (
    EstimatedPrior,
    EstimatedRound,
    PooledRule,
    PooledStatistics,
    Request,
    Result,
)
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.store import AnswerRow, Store
from fedmap_aggregator.studies.service import Report, Study

_TRIES = 3
_PAUSE_MS = 2_000  # after a first failure; twice as long after each further one
_LONGEST_PAUSE_MS = 60_000
_REASON = 500


class Estimator(Protocol):
    """`EstimationWorker`, as far as it is used here; its overloads say which result a request has."""

    def submit(self, request: Any) -> Future[Any]: ...


@dataclass(frozen=True)
class _Failures:
    count: int
    not_before: int  # unix ms


class EstimationDesk:
    """Implements `service.Estimates`."""

    def __init__(
        self, store: Store, worker: Estimator, metrics: AggregatorMetrics, clock_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._worker = worker
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._running: set[tuple[str, str]] = set()
        self._failures: dict[tuple[str, str], _Failures] = {}
        self._log = get_logger()

    def start(self, study: Study, compute: Compute, report: Report) -> None:
        """Begin, unless it runs already or failed a moment ago."""
        key = (study.state.study, compute.task_id)
        with self._lock:
            pause = self._failures.get(key)
            if key in self._running or (pause is not None and self._clock_ms() < pause.not_before):
                return
            self._running.add(key)
        try:
            answers, request = self._prepared(study, compute)
        except FedmapError as error:
            self._failed(key, error)
            return
        except BaseException:
            self._end(key)
            raise
        job = _Job(study, compute, answers, report, time.perf_counter())
        if request is None:
            self._finish(key, job, None)
            return
        future: Future[Result] = self._worker.submit(request)
        reach("aggregator.estimating")
        future.add_done_callback(lambda done: self._done(key, job, done))

    def _prepared(self, study: Study, compute: Compute) -> tuple[tuple[AnswerRow, ...], Request | None]:
        with self._store.reading() as transaction:
            answers = transaction.answers.list(study.state.study, compute.task_id)
            earlier = compute.kind in ("initialise", "rule")
            results = transaction.results.list(study.state.study) if earlier else ()
            absent = transaction.answers.newest_accepted(
                study.state.study,
                rounds_before(compute.round),
                count_without_answer(study.terms, study.state, compute),
            )
        return answers, request_for(study.terms, study.state, compute, answers, results, absent)

    def _done(self, key: tuple[str, str], job: _Job, future: Future[Result]) -> None:
        try:
            result = future.result()
        except CancelledError:  # the server stops; the study still owes this computation
            self._end(key)
            return
        except FedmapError as error:
            self._take_failure(key, job, error)
            return
        self._metrics.took("estimate", time.perf_counter() - job.began)
        self._finish(key, job, result)

    def _finish(self, key: tuple[str, str], job: _Job, result: Result | None) -> None:
        self._end(key)  # before the report: it may close the next step and start that
        try:
            event, row = outcome_of(job.study.state, job.compute, result, job.answers, self._clock_ms())
            job.report(event, row)
        except StaleError:  # the study was aborted meanwhile
            self._drop(key, result)
        except FedmapError as error:
            self._failed(key, error)
        else:
            with self._lock:
                self._failures.pop(key, None)

    def _drop(self, key: tuple[str, str], result: Result | None) -> None:
        """What nobody will name goes at once: a purge of the study would take it for something new."""
        self._log.info("result_dropped", study=key[0], task=key[1])
        try:
            self._store.drop_unnamed(_blobs_of(result))
        except FedmapError as error:  # a later purge takes it
            self._log.error("result_not_deleted", study=key[0], task=key[1], exc_info=error)

    def _take_failure(self, key: tuple[str, str], job: _Job, error: FedmapError) -> None:
        count = self._failed(key, error)
        if isinstance(error, StorageError) or count < _TRIES:
            return
        reason = error.message.partition("\n")[0][:_REASON]
        with self._lock:
            self._failures.pop(key, None)  # after a resume it gets its tries again
        try:
            job.report(ComputeFailed(self._clock_ms(), key[1], reason), None)
        except FedmapError as also:
            self._failed(key, also)

    def _failed(self, key: tuple[str, str], error: FedmapError) -> int:
        """Notes a failure, and lets the next try wait. Returns how many there were in a row."""
        self._log.error("computation_failed", study=key[0], task=key[1], exc_info=error)
        self._metrics.estimation_failed(key[0])
        with self._lock:
            self._running.discard(key)
            before = self._failures.get(key)
            count = 1 + (before.count if before is not None else 0)
            pause = min(_PAUSE_MS << min(count - 1, 10), _LONGEST_PAUSE_MS)
            self._failures[key] = _Failures(count, self._clock_ms() + pause)
            return count

    def _end(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._running.discard(key)


@dataclass(frozen=True)
class _Job:
    study: Study
    compute: Compute
    answers: tuple[AnswerRow, ...]
    report: Report
    began: float


def _blobs_of(result: Result | None) -> tuple[str, ...]:
    match result:
        case PooledStatistics():
            return (result.scaler_digest,)
        case EstimatedPrior() | EstimatedRound():
            return (result.prior_digest,)
        case PooledRule():
            return (result.reference_digest,) if result.reference_digest else ()
        case None:
            return ()
