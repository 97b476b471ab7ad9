"""The course of a comparison: look at the data, tune every method, run every method with every seed.

What was done before is taken from its records. Tuning sees validation rows only, with a seed that no run
has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmap.metrics import higher_is_better
from fedmap_lab.comparison.jobs import Job, JobResult
from fedmap_lab.comparison.records import Records, comparison_folder
from fedmap_lab.comparison.request import Identity, Request, identity_of
from fedmap_lab.comparison.trials import TUNING_SEED, Setting, draw_trials
from fedmap_lab.comparison.workers import Crash, Workplace, run_jobs
from fedmap_lab.federation.sites import Federation, load_federation
from fedmap_lab.methods.registry import METHODS

OnJob = Callable[[str, int, int], None]
"""Hears of each finished job: what is going on, jobs done, jobs in all."""


@dataclass(frozen=True)
class Comparison:
    """Everything that was found out, in the order of methods and seeds."""

    request: Request
    identity: Identity
    federation: Federation
    chosen: Mapping[str, Setting]
    trials: tuple[JobResult, ...]
    runs: tuple[JobResult, ...]
    crashes: tuple[Crash, ...]
    unasked: tuple[tuple[str, int], ...] = ()  # method and seed of recorded runs that were not asked for


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
