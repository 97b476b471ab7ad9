"""Estimation in a process of its own, so that the server answers while priors are computed.

`EstimationWorker.submit` returns at once with a Future. One thread hands requests to the process one by one.
A process that ends by itself, or has no result within its time, fails the request it was at; the next request
starts another. What is computed is in `worker`; when to compute, and whether to try again, is the
service's to decide.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, overload

from fedmap.errors import FedmapError, ModelError, NotFoundError, StorageError, TrainingError
from fedmap_aggregator.course.messages import (
    EstimatedPrior,
    EstimatedRound,
    Failed,
    InitialPrior,
    NextPrior,
    PooledRule,
    PooledStatistics,
    PoolRule,
    PoolStatistics,
    Request,
    Result,
    reply_of,
    to_line,
)

# -P: never from the folder it is started in, which may be a checkout of another version.
_COMMAND = (sys.executable, "-P", "-m", "fedmap_aggregator.estimation.worker")
_LONGEST_SECONDS = 7200.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_ERRORS: Mapping[str, type[FedmapError]] = {
    error.code: error for error in (ModelError, TrainingError, StorageError, NotFoundError)
}


@dataclass(frozen=True)
class _Job:
    request: Request
    future: Future[Result]


class EstimationWorker:
    """Use as a context manager, or call `close`. Safe to use from several threads."""

    def __init__(
        self, blobs: Path, command: tuple[str, ...] = _COMMAND, longest_seconds: float = _LONGEST_SECONDS
    ) -> None:
        """A computation that takes longer than `longest_seconds` counts as hung, and its process is ended."""
        self._command = (*command, str(blobs), str(os.getpid()))
        self._longest_seconds = longest_seconds
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # for the two below
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="estimation", daemon=True)
        self._thread.start()

    @overload
    def submit(self, request: PoolStatistics) -> Future[PooledStatistics]: ...
    @overload
    def submit(self, request: InitialPrior) -> Future[EstimatedPrior]: ...
    @overload
    def submit(self, request: NextPrior) -> Future[EstimatedRound]: ...
    @overload
    def submit(self, request: PoolRule) -> Future[PooledRule]: ...
    def submit(self, request: Request) -> Future[Result]:  # type: ignore[misc]  # a Future is invariant
        """Never waits. The Future fails with an error of `fedmap.errors`; a cancelled one is not computed."""
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
            else:
                self._jobs.put(_Job(request, future))
        return future

    @property
    def pid(self) -> int | None:
        """Of the process that is running now, if one is."""
        with self._lock:
            return None if self._process is None or self._process.poll() is not None else self._process.pid

    def close(self) -> None:
        """Ends the process, also in the middle of a computation. Every open Future raises CancelledError."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        self._jobs.put(None)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        """The thread: starts the process before anybody waits for it, then serves until closed."""
        self._running()
        for job in self._waiting():
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._ask(job.request))
            except FedmapError as error:
                with self._lock:
                    stopped = (
                        self._closed
                    )  # then it did not fail: the request can be made again after a start
                job.future.set_exception(CancelledError() if stopped else error)
        self._end_process()

    def _waiting(self) -> Iterator[_Job]:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                closed = self._closed
            if closed:
                job.future.cancel()
            else:
                yield job

    def _ask(self, request: Request) -> Result:
        process = self._running()
        if process is None:
            raise _crashed("could not be started", "")
        assert process.stdin is not None
        assert process.stdout is not None
        hung = threading.Event()

        def end() -> None:
            hung.set()
            process.kill()

        watch = threading.Timer(self._longest_seconds, end)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(to_line(request))
            process.stdin.flush()
            reply = reply_of(process.stdout.readline())
        except (OSError, ValueError) as error:  # its end of a pipe is gone, or the reply was cut off
            crash = _crashed("ended before it had a result", self._end_process())
            raise (self._too_long() if hung.is_set() else crash) from error
        finally:
            watch.cancel()
        if isinstance(reply, Failed):
            raise _ERRORS.get(reply.code, FedmapError)(reply.message, hint=reply.hint)
        if reply.kind != request.kind:
            raise _crashed("answered something else", self._end_process())
        return reply

    def _too_long(self) -> TrainingError:
        return TrainingError(
            f"the estimation process had no result in {self._longest_seconds / 60:g} minutes, and was ended",
            hint="look at the machine's load, memory and disk; raise limits.estimation_minutes if it really "
            "takes so long; `fedmap-aggregator study resume` tries again",
        )

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process, started where there is none; None where it cannot be."""
        with self._lock:
            if self._closed:
                return None
            if self._process is None or self._process.poll() is not None:
                self._drop_pipes()
                try:
                    self._process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        env=os.environ | _ONE_THREAD,
                    )
                except OSError:  # too many processes, no memory: the next request tries again
                    self._process = None
            return self._process

    def _end_process(self) -> str:
        """Makes sure that the process is gone; says how it ended."""
        with self._lock:
            process = self._process
        if process is None:
            return ""
        process.kill()
        code = process.wait()
        with self._lock:
            self._drop_pipes()
            self._process = None
        return f" (signal {-code})" if code < 0 else f" (exit code {code})"

    def _drop_pipes(self) -> None:
        """Of the process that has ended. What it never read is lost with it."""
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unread bytes and nobody to take them
                    continue


def _crashed(what: str, how: str) -> TrainingError:
    return TrainingError(
        f"the estimation process {what}{how}",
        hint="the next request starts it again; look at the aggregator's log, its memory limit and its disk",
    )
