"""One table per tier for the reader at the terminal, and in words what in it is not comparable.

A figure is the median over sites of each site's mean over seeds, as in the report; the range is that of the
medians of the single seeds, and the figure can lie outside it. No test is made here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fedmap_lab.comparison.results import Comparison, JobResult
from fedmap_lab.comparison.tables import in_words
from fedmap_lab.methods.names import METHOD_NAMES
from fedmap_lab.statistics.caveats import Circumstances
from fedmap_lab.statistics.caveats import caveats as all_caveats
from fedmap_lab.wording import joined


@dataclass(frozen=True)
class TierRow:
    """The plan's metric of one method at one tier."""

    tier: int
    method: str
    median: float | None  # over sites, of each one's mean over seeds
    low: float | None  # of the median over sites, over seeds
    high: float | None
    seeds: int
    sites: int  # fewest that were scored in a seed
    note: str


def tier_rows(comparison: Comparison) -> tuple[TierRow, ...]:
    """By tier and method; tiers without sites and methods that are not defined here are left out."""
    rows = []
    absent = not_run(comparison)
    methods = [method for method in comparison.request.methods if method not in absent]
    for tier in (1, 2, 3):
        of_tier = len(comparison.federation.tier(tier))
        if of_tier:
            rows += [_row(comparison, tier, method, of_tier) for method in methods]
    return tuple(rows)


def not_run(comparison: Comparison) -> dict[str, str]:
    """Methods that are not defined under this plan, and why."""
    return {run.job.method: run.reason for run in comparison.runs if run.outcome == "undefined"}


def _row(comparison: Comparison, tier: int, method: str, of_tier: int) -> TierRow:
    runs = [run for run in comparison.runs if run.job.method == method]
    values = [found for run in runs if (found := _values(comparison, run, tier))]
    medians = [float(np.median(list(found.values()))) for found in values]
    sites = min((len(found) for found in values), default=0)
    notes = [_why_not(runs, tier)] if not medians else []
    if medians and len(medians) < comparison.request.seeds:
        notes.append(f"{len(medians)} of {comparison.request.seeds} seeds")
    if medians and sites < of_tier:
        notes.append(f"{sites} of {of_tier} sites scored")
    if method == "pooled":
        notes.append("oracle: needs all rows in one place")
    if not medians:
        return TierRow(tier, method, None, None, None, 0, sites, "; ".join(notes))
    names = {site for found in values for site in found}
    by_site = [float(np.mean([found[site] for found in values if site in found])) for site in names]
    return TierRow(
        *(tier, method, float(np.median(by_site)), min(medians), max(medians)),
        *(len(medians), sites, "; ".join(notes)),
    )


def _values(comparison: Comparison, run: JobResult, tier: int) -> dict[str, float]:
    """By site."""
    metric = comparison.request.plan.task.metric
    model = "global" if tier == 3 else "personal"
    return {
        s.site: s.value
        for s in run.scores
        if (s.tier, s.model, s.metric) == (tier, model, metric) and s.value is not None
    }


def _why_not(runs: list[JobResult], tier: int) -> str:
    """Why a method has no figure at a tier."""
    if not runs:
        return "not run to its end"
    diverged = [run for run in runs if run.outcome == "diverged"]
    if diverged:
        return f"diverged: {diverged[0].reason}"
    notes = [s.note for run in runs for s in run.scores if s.tier == tier and s.value is None and s.note]
    return notes[0] if notes else "no model for this tier"


def caveats(comparison: Comparison) -> tuple[str, ...]:
    """What a reader of the tables has to know; methods by the names that the tables have."""
    request = comparison.request
    failures = [(r.job.method, r.outcome, r.reason) for r in comparison.runs if r.outcome != "done"]
    at = Circumstances(
        methods=request.methods,
        trials=request.trials,
        seeds=request.seeds,
        sites={tier: len(comparison.federation.tier(tier)) for tier in (1, 2, 3)},
        failures=failures,
        failed_fits=[(run.job.method, f.site) for run in comparison.runs for f in run.failed],
    )
    found = all_caveats(at, label=str)
    excluded = [site.name for site in comparison.federation.excluded]
    if excluded:
        found.append(
            f"Left out because their data did not pass the checks: {joined(excluded)} (why: notes.csv)."
        )
    if comparison.crashes:
        found.append(f"{len(comparison.crashes)} jobs lost their process: call again to have them done.")
    return tuple(found)


def not_in_the_report(comparison: Comparison) -> str:
    """Recorded runs that this call did not ask for: tables and report are of what was asked for. Else ''."""
    methods, seeds = comparison.request.methods, range(comparison.request.seeds)
    recorded = {*methods, *(method for method, _ in comparison.unasked)}
    others = [name for name in METHOD_NAMES if name in recorded and name not in methods]
    more = sorted({seed for _, seed in comparison.unasked} - set(seeds))
    if not others and not more:
        return ""
    parts = [f"the recorded runs of {joined(others)}"] if others else []
    parts += [f"those with seed {joined([str(seed) for seed in more])}"] if more else []
    every = tuple(name for name in METHOD_NAMES if name in recorded)
    names = "all" if every == METHOD_NAMES else ",".join(every)
    count = max([len(seeds), *(seed + 1 for seed in more)])
    return (
        f"Tables and report are without {joined(parts)}. To have them back, give the same command with "
        f"--methods {names} --seeds {count}."
    )


def as_json(comparison: Comparison) -> dict[str, object]:
    floor = comparison.request.plan.limits.min_cell
    return {
        "metric": comparison.request.plan.task.metric,
        "not_run": not_run(comparison),
        "rows": [asdict(row) for row in tier_rows(comparison)],
        "caveats": list(caveats(comparison)),
        "excluded": [
            {"site": site.name, "problems": [in_words(problem, floor) for problem in site.problems]}
            for site in comparison.federation.excluded
        ],
    }
