"""Writes what a comparison found as tidy CSV files and one JSON description: all that later analysis reads.

    comparison.json   plan, digests, versions, command, what was asked for
    metrics.csv       method, seed, tier, site, region, model, metric, value
    skipped.csv       the same without a value, and why
    settings.csv      method, setting, value, tuned
    trials.csv        method, trial, setting, validation figure, chosen
    failures.csv      method, seed, kind, round, site, reason
    rounds.csv        method, seed, round: losses, penalties, the curve on validation rows
    omega.csv         method, seed, round, site, weight in the global model
    sites.csv         site, tier, region, rows, share of outcomes (each empty where a count is small)
    calibration.csv   method, seed, tier, bin: rows, predicted and observed risk over the tier's sites
    subgroups.csv     method, seed, tier, site, column, category: the plan's metric in that category
    notes.csv         site, note: single-class parts, too few events, sites and rows left out

Small counts of rows are said as "fewer than", and calibration, subgroups and shares of outcomes have no small
cells. metrics.csv and the records have figures of single sites, also of sites with very few patients or with
one outcome: the folder stays where the data are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from fedmap.files.durable import write_durably
from fedmap.scoring.disclosure import is_small_cell
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.comparison.request import DESCRIPTION, command, versions
from fedmap_lab.comparison.results import Comparison, JobResult
from fedmap_lab.comparison.trials import TUNING_SEED, all_settings
from fedmap_lab.federation.sites import Site
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.tables import Row, write_table

_BY_RUN: tuple[tuple[str, tuple[str, ...], Callable[[JobResult], Iterable[object]]], ...] = (
    (
        "rounds.csv",
        (
            *("round", "loss", "penalty", "convex_penalty", "validation_loss", "largest_weight"),
            *("personal", "shared"),
        ),
        lambda run: run.rounds,
    ),
    ("omega.csv", ("round", "site", "weight"), lambda run: run.weights),
    (
        "calibration.csv",
        ("tier", "model", "rows", "predicted", "observed", "low", "high"),
        lambda run: run.calibration,
    ),
    (
        "subgroups.csv",
        ("tier", "site", "column", "category", "value"),
        lambda run: (one for one in run.subgroups if one.value is not None),
    ),
)
"""Files with a line for each part of a run: columns as the records call them."""


def write_tables(comparison: Comparison, out: Path) -> None:
    """All files, each whole or as it was before."""
    where = ("method", "seed", "tier", "site", "region", "model", "metric")
    write_table(out / "metrics.csv", (*where, "value", "note"), _scores(comparison, measured=True))
    write_table(out / "skipped.csv", (*where, "reason"), _scores(comparison, measured=False))
    write_table(out / "settings.csv", ("method", "setting", "value", "tuned"), _settings(comparison))
    write_table(
        out / "trials.csv",
        ("method", "trial", "seed", "setting", "outcome", "metric", "value", "chosen", "seconds"),
        _trials(comparison),
    )
    write_table(
        out / "failures.csv", ("method", "seed", "kind", "round", "site", "reason"), _failures(comparison)
    )
    for name, columns, parts in _BY_RUN:
        rows = (
            (run.job.method, run.job.seed, *(getattr(one, column) for column in columns))
            for run in comparison.runs
            for one in parts(run)
        )
        write_table(out / name, ("method", "seed", *columns), rows)
    write_table(
        out / "sites.csv",
        ("site", "tier", "region", "train", "validation", "test", "outcome_share"),
        (_site(comparison.request.plan, site) for site in comparison.federation.sites),
    )
    write_table(out / "notes.csv", ("tier", "site", "note"), _notes(comparison))
    write_durably(out / DESCRIPTION, _description(comparison), mode=0o644)


def _scores(comparison: Comparison, measured: bool) -> Iterable[Row]:
    floor = comparison.request.plan.limits.min_cell
    for run in comparison.runs:
        for s in run.scores:
            at = (run.job.method, run.job.seed, s.tier, s.site, s.region, s.model, s.metric)
            if measured and s.value is not None:
                yield (*at, repr(s.value), in_words(s.note, floor))
            elif not measured and s.value is None:
                yield (*at, in_words(s.note, floor))


def _settings(comparison: Comparison) -> Iterable[Row]:
    settings = comparison.request.plan.settings
    tuned = "yes" if comparison.request.trials else "no"
    for name, setting in comparison.chosen.items():
        for key, value in all_settings(setting, METHODS[name], settings).items():
            yield name, key, value, tuned


def _trials(comparison: Comparison) -> Iterable[Row]:
    metric = comparison.request.plan.task.metric
    for trial in comparison.trials:
        job = trial.job
        words = " ".join(f"{name}={value:g}" for name, value in sorted(job.setting.items())) or "default"
        chosen = "yes" if job.setting == comparison.chosen[job.method] else "no"
        yield (
            *(job.method, job.trial, job.seed, words),
            *(trial.outcome, metric, trial.validation, chosen, trial.seconds),
        )


def _failures(comparison: Comparison) -> Iterable[Row]:
    """Methods that are not defined or diverged, processes that ended, fits of single sites that failed."""
    for run in comparison.runs:
        at = (run.job.method, run.job.seed)
        if run.outcome != "done":
            yield (*at, run.outcome, "", "", run.reason)
        yield from ((*at, "site", f.round, f.site, f.reason) for f in run.failed)
    for crash in comparison.crashes:
        reason = f"its process ended with code {crash.exit_code}; call again to retry"
        yield crash.job.method, crash.job.seed, "crashed", "", "", reason


def _site(plan: StudyPlan, site: Site) -> Row:
    parts = (site.data.train, site.data.validation, site.data.test)
    share: float | str = ""
    if plan.task.kind != "multiclass":
        outcomes = torch.cat([part.target > 0 if part.event is None else part.event for part in parts])
        count = int(outcomes.sum())
        if min(count, len(outcomes) - count) >= plan.limits.min_cell:
            share = round(count / len(outcomes), 4)
    sizes = (size(len(part), plan.limits.min_cell) for part in parts)
    return (site.name, site.tier, site.region, *sizes, share)


def _notes(comparison: Comparison) -> Iterable[Row]:
    federation, floor = comparison.federation, comparison.request.plan.limits.min_cell
    found = [
        (site.tier, site.name, note)
        for site in federation.sites
        for note in (*site.data.notes, *(f"{e.rows} rows left out: {e.reason}" for e in site.data.exclusions))
    ]
    found += [(site.tier, site.name, f"excluded: {p}") for site in federation.excluded for p in site.problems]
    return ((tier, name, in_words(note, floor)) for tier, name, note in found)


def _description(comparison: Comparison) -> bytes:
    request = comparison.request
    federation = comparison.federation
    described = {
        "study": request.plan.study.name,
        "title": request.plan.study.title,
        "metric": request.plan.task.metric,
        "task": request.plan.task.kind,
        **comparison.identity.model_dump(),
        "methods": list(request.methods),
        "seeds": list(range(request.seeds)),
        "tuning_seed": TUNING_SEED if request.trials else None,
        "search_spaces": {name: dict(METHODS[name].space) for name in request.methods},
        "sites": {f"tier_{tier}": len(federation.tier(tier)) for tier in (1, 2, 3)},
        "excluded_sites": [site.name for site in federation.excluded],
        "seconds": round(sum(run.seconds for run in (*comparison.trials, *comparison.runs)), 1),
        "versions": versions(),
        "command": command(),
        "plan": request.plan.model_dump(mode="json"),
    }
    return json.dumps(described, indent=2, sort_keys=False).encode() + b"\n"


_COUNT = re.compile(
    r"\b(?P<count>\d+)(?P<kind> (?:test |validation |training )?)rows?\b"
    r"|\b(?P<of>\d+)(?= of \d+ (?:rows|values)\b| missing values\b)"
)


def size(count: int, floor: int) -> int | str:
    """A number for a table; empty where it is small."""
    return "" if is_small_cell(count, floor) else count


def in_words(text: str, floor: int) -> str:
    """The text with its small counts of rows and values blurred."""

    def blurred(found: re.Match[str]) -> str:
        count = found["count"] or found["of"]
        if not is_small_cell(int(count), floor):
            return found[0]
        return f"fewer than {floor}" + (f"{found['kind']}rows" if found["count"] else "")

    return _COUNT.sub(blurred, text)
