"""Jobs side by side in processes, one torch thread each.

Each process loads the federation once, then takes a job at a time. What comes back does not depend on how
many there are: a job's engine never splits its work by the number of workers. Nothing survives the parent:
workers are ended when the block is left for whatever reason, and end themselves when the parent is gone.
Whoever calls keeps the results; nothing is written here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from fedmap.study.engine import Engine, LoopEngine
from fedmap.study.plan import StudyPlan
from fedmap_lab.comparison.jobs import Job, JobResult, run_job
from fedmap_lab.federation.engines import EngineName, VectorisedEngine, keep_freed_memory
from fedmap_lab.federation.sites import load_federation

END_SECONDS = 10.0


@dataclass(frozen=True)
class Workplace:
    """What every worker needs to know."""

    plan: StudyPlan
    data: Path
    engine: EngineName


@dataclass(frozen=True)
class Crash:
    """A job whose process ended under it, for example for want of memory."""

    job: Job
    exit_code: int | None


class _Worker:
    def __init__(self, workplace: Workplace) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, workplace), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        self.job = job
        self.connection.send(job)

    def end(self) -> None:
        self.process.terminate()
        self.process.join(END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def run_jobs(workplace: Workplace, jobs: Sequence[Job], workers: int) -> Iterator[JobResult | Crash]:
    """The results in the order in which they come."""
    waiting = list(reversed(jobs))
    at_work: list[_Worker] = []
    try:
        for _ in range(min(workers, len(jobs))):
            at_work.append(_Worker(workplace))
            at_work[-1].give(waiting.pop())
        while at_work:
            ready = wait([worker.connection for worker in at_work])
            for worker in [worker for worker in at_work if worker.connection in ready]:
                assert worker.job is not None
                job = worker.job
                try:
                    result: JobResult | Crash = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join(END_SECONDS)
                    result = Crash(job, worker.process.exitcode)
                if isinstance(result, Crash) or not waiting:
                    at_work.remove(worker)
                    worker.end()
                    if waiting:
                        worker = _Worker(workplace)
                        at_work.append(worker)
                if waiting:
                    worker.give(waiting.pop())
                yield result
    finally:
        for worker in at_work:
            worker.end()


def _work(connection: Connection, workplace: Workplace) -> None:
    """A worker's life. Ctrl-C is the parent's business: it ends the workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    federation = load_federation(workplace.plan, workplace.data)
    engine: Engine = LoopEngine() if workplace.engine == "loop" else VectorisedEngine(workers=1)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run_job(federation, engine, job))


def _end_with_parent() -> None:
    """A killed parent closes nothing in order; its workers must not go on training for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
