"""Pictures of a simulation: how it converged, and where the sites ended up."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedmap.metrics import Metric, metric_label
from fedmap_lab.local.tiers import Figure as Estimated
from fedmap_lab.local.tiers import TierResults
from fedmap_lab.simulation.simulate import Study

mpl.use("Agg")

INK, PERSONAL, SHARED, MUTED, CONVEX = "#1f2933", "#0b6e99", "#d9822b", "#9aa5b1", "#7b5ea7"


def draw_convergence(study: Study, path: Path) -> None:
    """Three panels: loss by round, the plan's metric by round, and the sites' final scores by tier."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    loss, metric, final = figure.subplots(1, 3)
    _draw_loss(loss, study)
    _draw_metric(metric, study)
    _draw_final(final, study)
    figure.suptitle(study.federation.plan.study.title, x=0.01, ha="left", color=INK, fontweight="bold")
    figure.savefig(path, dpi=130)


def _style(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_loss(axes: Axes, study: Study) -> None:
    _style(axes, "Loss and penalty of T1 sites\nmean; penalty weighted by ω̄", "round", "per row")
    history = study.trained.history
    if not history:
        _say(axes, "this method has no rounds")
        return
    rounds = [record.round for record in history]
    axes.plot(rounds, [record.loss for record in history], color=PERSONAL, label="training rows")
    axes.plot(rounds, [record.validation_loss for record in history], color=SHARED, label="validation rows")
    penalty = axes.twinx()
    penalty.plot(
        rounds, [record.penalty for record in history], color=MUTED, ls="--", label="penalty R (right)"
    )
    penalty.plot(
        rounds,
        [record.convex_penalty for record in history],
        color=CONVEX,
        ls=":",
        label="convex part f (right)",
    )
    penalty.spines[["top"]].set_visible(False)
    penalty.set_ylim(bottom=0)
    lines = [*axes.get_lines(), *penalty.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize=8)


def _draw_metric(axes: Axes, study: Study) -> None:
    label = metric_label(study.federation.plan.task.metric)
    _style(axes, f"{label} on validation rows\nmedian over T1 sites", "round", label)
    if not study.curve:
        _say(axes, "this method has no rounds")
        return
    rounds = [point.round for point in study.curve]
    for values, colour, name in (
        ([point.personal for point in study.curve], PERSONAL, "personal models"),
        ([point.shared for point in study.curve], SHARED, "global model μ"),
    ):
        numbers = [np.nan if value is None else value for value in values]
        axes.plot(rounds, numbers, color=colour, marker="o", markersize=3, label=name)
    axes.legend(frameon=False, fontsize=8)


def _draw_final(axes: Axes, study: Study) -> None:
    name = study.federation.plan.task.metric
    label = metric_label(name)
    _style(axes, f"{label} on test rows\none dot a site", "", label)
    boxes, names, colours = [], [], []
    for tier in (1, 2, 3):
        for model, colour in (("personal", PERSONAL), ("global", SHARED)):
            values = [
                s.result.value
                for s in study.scores
                if s.tier == tier
                and s.model == model
                and s.result.name == name
                and isinstance(s.result, Metric)
            ]
            if values:
                boxes.append(values)
                names.append(f"T{tier}\n{model}")
                colours.append(colour)
    if not boxes:
        _say(axes, "no site could be scored")
        return
    axes.boxplot(boxes, widths=0.5, showfliers=False, medianprops={"color": INK, "linewidth": 1.6})
    for position, (values, colour) in enumerate(zip(boxes, colours, strict=True), start=1):
        jitter = np.random.default_rng(position).uniform(-0.13, 0.13, len(values))
        axes.scatter(position + jitter, values, s=14, color=colour, alpha=0.55, linewidths=0, zorder=3)
    axes.set_xticks(range(1, len(names) + 1), names)


def draw_federation(demo: TierResults, path: Path) -> None:
    """Three panels of the demo: loss by round, the metric by round, and every site of the three tiers."""
    study = demo.study
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    loss, metric, final = figure.subplots(1, 3)
    label = metric_label(study.metric)
    _style(loss, "Loss of the T1 sites\nmean over sites", "round", "per row")
    _style(metric, f"{label} on validation rows\nmedian over T1 sites", "round", label)
    seen = [
        (loss, "loss", PERSONAL, "training rows"),
        (loss, "validation_loss", SHARED, "validation rows"),
        (metric, "personal_metric", PERSONAL, "personal models"),
        (metric, "global_metric", SHARED, "global model μ of the round before"),
    ]
    for axes, name, colour, title in seen:
        points = [
            (entry.round, value) for entry in study.history if (value := getattr(entry, name)) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, label=title)
    for axes in (loss, metric):
        axes.legend(frameon=False, fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_tiers(final, demo, label)
    figure.suptitle(study.title, x=0.01, ha="left", color=INK, fontweight="bold")
    figure.savefig(path, dpi=130)


def _draw_tiers(axes: Axes, demo: TierResults, label: str) -> None:
    """A line a site, T1 at the top: the global model, and the site's own where it has one."""
    _style(axes, f"{label} on test rows\nby tier", label, "")
    study = demo.study
    lines = [(1, s, study.value(s, "global"), study.value(s, "personal")) for s in study.sites]
    for site, report in demo.fine_tuned.items():
        before, after = report.main.before, report.main.after
        lines.append((2, site, _value(before), _value(after)))
    for site, predicted in demo.predicted.items():
        lines.append((3, site, _value(predicted.figure), None))
    for depth, (_, _, shared, own) in enumerate(lines):
        if own is not None and shared is not None:
            axes.plot([shared, own], [-depth, -depth], color=MUTED, linewidth=2, zorder=1)
        for value, colour in ((shared, SHARED), (own, PERSONAL)):
            if value is not None:
                axes.scatter([value], [-depth], color=colour, s=60, zorder=3)
    names = [f"T{tier}  {site.replace('_', ' ')}" for tier, site, _, _ in lines]
    axes.set_yticks([-depth for depth in range(len(lines))], names)
    axes.set_ylim(-len(lines) + 0.4, 0.6)
    axes.scatter([], [], color=PERSONAL, label="the site's own model")
    axes.scatter([], [], color=SHARED, label="global model")
    axes.legend(frameon=False, fontsize=8, loc="best")


def _value(figure: Estimated | None) -> float | None:
    return None if figure is None else figure.value


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=MUTED)
