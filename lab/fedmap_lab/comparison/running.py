"""The course of a comparison: look at the data, tune every method, run every method with every seed.

What was done before is taken from its records. Tuning sees validation rows only, with a seed that no run has.
Jobs run side by side in processes, one torch thread each, and what comes back does not depend on how many
there are. Nothing survives the parent: workers are ended when the block is left for whatever reason, and end
themselves when the parent is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from fedmap.metrics import higher_is_better
from fedmap.study.engine import Engine, LoopEngine
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.comparison.jobs import run_job
from fedmap_lab.comparison.records import Records, comparison_folder
from fedmap_lab.comparison.request import Request, identity_of
from fedmap_lab.comparison.results import Comparison, Crash, Job, JobResult, Setting
from fedmap_lab.comparison.trials import TUNING_SEED, draw_trials
from fedmap_lab.federation.engines import EngineName, VectorisedEngine, keep_freed_memory
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.registry import METHODS

OnJob = Callable[[str, int, int], None]
"""Hears of each finished job: what is going on, jobs done, jobs in all."""


def compare(request: Request, out: Path, workers: int, on_job: OnJob) -> Comparison:
    """Do what is missing in OUT. Writes the records only; `tables` writes the rest."""
    drawn = _draw(request)
    federation = load_federation(
        request.plan, request.data
    )  # what does not fit is said before anything starts
    identity = identity_of(request)
    with comparison_folder(out, identity) as records:
        crashes: list[Crash] = []
        trial_jobs = [
            Job(kind="trial", method=name, seed=TUNING_SEED, trial=i, setting=s, rounds=request.rounds)
            for name, settings in drawn.items()
            for i, s in enumerate(settings)
        ]
        trials = _do(request, records, trial_jobs, workers, "tuning", on_job, crashes)
        chosen = {
            name: _best(request, drawn.get(name, ({},)), trials.get(name, [])) for name in request.methods
        }
        jobs = [
            Job(kind="run", method=name, seed=seed, setting=chosen[name], rounds=request.rounds)
            for seed in range(request.seeds)
            for name in request.methods
        ]
        runs = _do(request, records, jobs, workers, "comparing", on_job, crashes)
        asked = {(job.method, job.seed) for job in jobs}
        unasked = tuple(run for run in records.runs() if run not in asked)
    tried = tuple(result for name in request.methods for result in trials.get(name, []))
    done = tuple(result for name in request.methods for result in runs.get(name, []))
    return Comparison(request, identity, federation, chosen, tried, done, tuple(crashes), unasked)


def _draw(request: Request) -> dict[str, tuple[Setting, ...]]:
    if not request.trials:
        return {}
    settings = request.plan.settings
    return {name: draw_trials(name, METHODS[name], settings, request.trials) for name in request.methods}


def _do(
    request: Request,
    records: Records,
    jobs: Sequence[Job],
    workers: int,
    label: str,
    on_job: OnJob,
    crashes: list[Crash],
) -> dict[str, list[JobResult]]:
    """Results by method, in the order of the jobs; what has a record is not done again."""
    found = {job.key: before for job in jobs if (before := records.find(job)) is not None}
    missing = [job for job in jobs if job.key not in found]
    on_job(label, len(found), len(jobs))
    ended = len(found)
    workplace = Workplace(request.plan, request.data, request.engine)
    for result in run_jobs(workplace, missing, workers):
        if isinstance(result, Crash):
            crashes.append(result)  # no record: the next call tries it again
        else:
            records.keep(result)
            found[result.job.key] = result.model_copy(update={"models": {}})
        ended += 1
        on_job(label, ended, len(jobs))
    by_method: dict[str, list[JobResult]] = {}
    for job in jobs:
        if job.key in found:
            by_method.setdefault(job.method, []).append(found[job.key])
    return by_method


def _best(request: Request, settings: Sequence[Setting], trials: Sequence[JobResult]) -> Setting:
    """The setting with the best validation figure; the default where no trial has one. Ties: the first."""
    sign = 1.0 if higher_is_better(request.plan.task.metric) else -1.0
    judged = [(sign * t.validation, -t.job.trial) for t in trials if t.validation is not None]
    return settings[-max(judged)[1]] if judged else {}


END_SECONDS = 10.0


@dataclass(frozen=True)
class Workplace:
    """What every worker needs to know."""

    plan: StudyPlan
    data: Path
    engine: EngineName


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
