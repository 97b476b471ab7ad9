"""Writes what a simulation found: tables, models and a summary. No patient-level number is ever written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.errors import FedmapError
from fedmap.metrics import Metric, SkippedMetric
from fedmap.study.tensors.parameter_files import named_parameters
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.simulation.kept_models import ABOUT, About, about_run
from fedmap_lab.simulation.simulate import Score, Study
from fedmap_lab.tables import write_table


@dataclass(frozen=True)
class SummaryRow:
    """One metric of one tier: median and quartiles over its sites."""

    tier: int
    model: str
    metric: str
    sites: int
    median: float
    lower_quartile: float
    upper_quartile: float
    skipped: int


def summarise(scores: Sequence[Score]) -> tuple[SummaryRow, ...]:
    """Over sites, by tier, model and metric, in order of first appearance within a tier."""
    keys = dict.fromkeys((s.tier, s.model, s.result.name) for s in scores)
    rows = []
    for tier, model, metric in sorted(keys, key=lambda key: key[0]):
        here = [s.result for s in scores if (s.tier, s.model, s.result.name) == (tier, model, metric)]
        values = [result.value for result in here if isinstance(result, Metric)]
        low, middle, high = np.percentile(values, [25, 50, 75]) if values else (np.nan,) * 3
        figures = (float(middle), float(low), float(high))
        rows.append(SummaryRow(tier, model, metric, len(values), *figures, len(here) - len(values)))
    return tuple(rows)


@contextmanager
def study_directory(out: Path) -> Iterator[Path]:
    """A fresh directory that takes the place of `out` if the block ends well: results of two runs never mix.

    Made before anything trains, so that a place that cannot be written to is found out first.
    """
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / "summary.json").is_file())):
        raise FedmapError(
            f"{out} holds something other than results of a study",
            hint="give --out a new directory, or empty this one yourself",
        )
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


def write_study(study: Study, out: Path, method: str, engine: str, rounds: int, seed: int) -> None:
    """Everything into the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    federation = study.federation
    _write_metrics(study, out)
    columns = ("round", "loss", "penalty", "convex_penalty", "validation_loss", "largest_weight")
    excluded = ((s.tier, s.name, s.region, problem) for s in federation.excluded for problem in s.problems)
    left_out = ((s.tier, s.name, e.reason, e.rows) for s in federation.sites for e in s.data.exclusions)
    failed = ((f.round, f.site, f.reason) for f in study.failed)
    notes = ((s.tier, s.name, note) for s in federation.sites for note in s.data.notes)
    history = ([getattr(record, name) for name in columns] for record in study.trained.history)
    write_table(out / "excluded.csv", ("tier", "site", "region", "problem"), excluded)
    write_table(out / "excluded_rows.csv", ("tier", "site", "reason", "rows"), left_out)
    write_table(out / "failed.csv", ("round", "site", "reason"), failed)
    write_table(out / "notes.csv", ("tier", "site", "note"), notes)
    write_table(out / "rounds.csv", columns, history)
    _write_thresholds(study, out)
    _write_models(study, out, about_run(study, method, METHODS[method], rounds, seed))
    plan = federation.plan
    summary = {
        "study": plan.study.name,
        "plan_digest": plan.digest,
        "method": method,
        "engine": engine,
        "rounds": rounds,
        "seed": seed,
        "sites": {f"tier_{tier}": len(federation.tier(tier)) for tier in (1, 2, 3)},
        "excluded_sites": [{"site": s.name, "problems": list(s.problems)} for s in federation.excluded],
        "failed_fits": [asdict(failure) for failure in study.failed],
        "metric": plan.task.metric,
        "summary": [asdict(row) for row in summarise(study.scores)],
    }
    (out / "summary.json").write_text(json.dumps(_without_nan(summary), indent=2) + "\n")


def _write_thresholds(study: Study, out: Path) -> None:
    """Decision thresholds of a binary task; a note says where the plan's rule had no answer."""
    rules = [*((name, "personal", rule) for name, rule in study.rules.items()), ("", "global", study.rule)]
    write_table(
        out / "thresholds.csv",
        ("site", "model", "threshold", "note"),
        (
            (site, model, rule.threshold.value, rule.threshold.note or "")
            for site, model, rule in rules
            if rule.threshold is not None
        ),
    )


def _write_metrics(study: Study, out: Path) -> None:
    """metrics.csv holds the personal models under the metric's name, the global model as <metric>_global.

    At T3 there is no personal model: the site's metric is the global model's.
    """
    rows, skipped = [], []
    for s in study.scores:
        name = s.result.name if s.model == "personal" or s.tier == 3 else f"{s.result.name}_global"
        if isinstance(s.result, SkippedMetric):
            skipped.append((s.tier, s.site, s.region, name, s.result.reason))
        else:
            rows.append((s.tier, s.site, s.region, name, repr(s.result.value)))
    write_table(out / "metrics.csv", ("tier", "site", "region", "metric", "value"), rows)
    write_table(out / "skipped.csv", ("tier", "site", "region", "metric", "reason"), skipped)


def _write_models(study: Study, out: Path, about: About | None) -> None:
    """`about` makes them a prior that can be explained (`fedmap_lab.simulation.kept_models`)."""
    federation = study.federation
    (out / "personal").mkdir(exist_ok=True)
    trained = (study.trained.model or federation.model).network
    for name, parameters in {**study.trained.personal, **study.fine_tuned}.items():
        save_file(named_parameters(trained, parameters), out / "personal" / f"{name}.safetensors")
    if federation.plan.scaling.mode == "pooled":
        scaler = {"scaler.mean": federation.scaler.mean, "scaler.deviation": federation.scaler.deviation}
        save_file(scaler, out / "scaler.safetensors")
    prior = study.trained.prior
    if prior is None:
        return
    save_file(
        named_parameters(federation.model.network, SiteParameters(prior.mu, prior.buffers)),
        out / "mu.safetensors",
    )
    if about is not None:
        if about.prior is not None and about.prior.convex:
            network = ConvexNetwork(federation.model.network.spec, about.prior)
            save_file(network.spec.to_mapping(prior.psi), out / "psi.safetensors")
        (out / ABOUT).write_text(about.model_dump_json(indent=2) + "\n")
    if study.rule.baseline is not None:
        baseline = study.rule.baseline
        grid = torch.tensor(baseline.grid, dtype=torch.float64)
        save_file({"grid": grid, "cumulative": baseline.cumulative}, out / "baseline.safetensors")


def _without_nan(value: object) -> object:
    """JSON has no NaN: a median over no site at all is null."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and np.isnan(value) else value
