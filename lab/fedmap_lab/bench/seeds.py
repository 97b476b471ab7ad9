"""`python -m fedmap_lab.bench.seeds --plan P --data D`: methods side by side over several training seeds.

Same splits, same initial model per seed, same budget for all. A table of the median over sites by tier
(mean and range over seeds), one by site, and how far the prior's convex part had faded by the last round.
Hyperparameters come from the plan; nothing is tuned here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedmap.metrics import Metric
from fedmap.study.plan.reading import load_plan
from fedmap_lab.federation.engines import make_engine
from fedmap_lab.federation.sites import Federation, load_federation
from fedmap_lab.methods.registry import METHODS
from fedmap_lab.simulation.simulate import Score, Study, simulate

VARIANTS = "individual,fedavg,fedmap-convex,fedmap-quadratic"


def run_variant(federation: Federation, variant: str, rounds: int, seed: int) -> Study:
    """A method by name; `fedmap-convex` and `fedmap-quadratic` are FedMAP with and without f."""
    return simulate(federation, METHODS[variant], make_engine("vectorised"), rounds, seed)


def main(
    plan: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    rounds: Annotated[int | None, typer.Option(min=1)] = None,
    metrics: Annotated[str, typer.Option(help="Comma-separated; default: the plan's metric.")] = "",
    variants: Annotated[str, typer.Option(help="Comma-separated.")] = VARIANTS,
    by_site: Annotated[bool, typer.Option(help="A second table, site by site.")] = False,
) -> None:
    """Compare individual training, FedAvg and FedMAP."""
    study_plan = load_plan(plan)
    federation = load_federation(study_plan, data)
    total = rounds or study_plan.rounds.count
    names = metrics.split(",") if metrics else [study_plan.task.metric]
    scores: dict[str, list[tuple[Score, ...]]] = defaultdict(list)
    faded = []
    progress = Console(stderr=True)
    runs = [(variant, seed) for variant in variants.split(",") for seed in range(seeds)]
    for variant, seed in track(runs, "runs", console=progress, disable=not progress.is_terminal):
        study = run_variant(federation, variant, total, seed)
        scores[variant].append(study.scores)
        if variant == "fedmap-convex":
            last = study.trained.history[-1]
            faded.append(last.convex_penalty / last.penalty)
    console = Console(width=120)
    for name in names:
        console.print(_by_tier(name, scores, seeds))
        if by_site:
            console.print(_by_site(name, scores))
    if faded:
        console.print(f"share of R that is the convex part in the last round: {np.mean(faded):.3f}")


def _values(scores: Sequence[Score], metric: str, tier: int, model: str) -> dict[str, float]:
    return {
        s.site: s.result.value
        for s in scores
        if s.tier == tier and s.model == model and s.result.name == metric and isinstance(s.result, Metric)
    }


def _by_tier(metric: str, scores: dict[str, list[tuple[Score, ...]]], seeds: int) -> Table:
    table = Table(title=f"{metric}: median over sites, mean over {seeds} seeds (least to most)")
    columns = [(1, "personal"), (1, "global"), (2, "personal"), (3, "global")]
    table.add_column("method")
    for tier, model in columns:
        table.add_column(f"T{tier} {model}")
    for variant, runs in scores.items():
        cells = []
        for tier, model in columns:
            values = [list(_values(run, metric, tier, model).values()) for run in runs]
            medians = [float(np.median(v)) for v in values if v]
            text = f"{np.mean(medians):.3f} ({min(medians):.3f} to {max(medians):.3f})" if medians else "-"
            cells.append(text)
        table.add_row(variant, *cells)
    return table


def _by_site(metric: str, scores: dict[str, list[tuple[Score, ...]]]) -> Table:
    table = Table(title=f"{metric} at T1 sites: mean over seeds ± SD, then the mean over sites")
    sites = sorted({s.site for runs in scores.values() for s in runs[0] if s.tier == 1})
    table.add_column("method")
    for site in sites:
        table.add_column(site)
    table.add_column("mean")
    for variant, runs in scores.items():
        by_run = [_values(run, metric, 1, "personal") for run in runs]
        cells, means = [], []
        for site in sites:
            values = [run[site] for run in by_run if site in run]
            cells.append(f"{np.mean(values):.3f} ± {np.std(values):.3f}" if values else "-")
            means += [float(np.mean(values))] if values else []
        table.add_row(variant, *cells, f"{np.mean(means):.3f}" if means else "-")
    return table


if __name__ == "__main__":
    typer.run(main)
