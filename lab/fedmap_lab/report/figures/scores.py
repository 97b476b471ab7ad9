"""How well methods do: box plots by tier, the course over the rounds, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedmap.metrics import METRICS, metric_label
from fedmap_lab.report.facts.reading import BinFact, Facts, RoundFact, means
from fedmap_lab.report.facts.shown_methods import ALONE, FEDMAP, ORACLE, ShownMethod, shown
from fedmap_lab.report.facts.statistics import Statistics
from fedmap_lab.report.figures.pictures import INK, MUTED, drawing, line_of, new_figure, style

_FILLS = {
    "alone": "#d7dbe0",
    "oracle": "#ffffff",
    "baseline": "#eceff2",
    "fedmap": "#0072b2",
    "variant": "#bcdcf0",
}
_MANY_SITES = 60
_FEWEST_FOR_BOX = 5


@drawing("scores-by-tier", "Every site, by tier and method")
def draw_boxes(facts: Facts) -> tuple[Figure, str] | str:
    """A panel a tier, a line a method."""
    tiers = [tier for tier in (1, 2, 3) if facts.scores(tier)]
    if not tiers:
        return "No site could be scored."
    methods = [m for m in facts.description.methods if any(m in facts.scores(tier) for tier in tiers)]
    figure = new_figure(1.3 + 0.27 * len(methods))
    panels = figure.subplots(1, len(tiers), sharey=True, squeeze=False)[0]
    label = metric_label(facts.metric)
    for axes, tier in zip(panels, tiers, strict=True):
        scores = facts.scores(tier)
        count = len(facts.tier(tier))
        style(axes, f"T{tier}, {count} site{'s' if count != 1 else ''}", label, grid="x")
        for place, method in enumerate(methods):
            if method in scores:
                _box(axes, place, shown(method), list(scores[method].values()))
        axes.margins(y=0.01)
        if FEDMAP in scores:
            median = float(np.median(list(scores[FEDMAP].values())))
            axes.axvline(median, color=shown(FEDMAP).colour, linewidth=0.9, linestyle=":", zorder=1)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    panels[0].set_yticks(range(len(methods)), [shown(method).label for method in methods])
    panels[0].set_ylim(len(methods) - 0.4, -0.6)
    for text, method in zip(panels[0].get_yticklabels(), methods, strict=True):
        text.set_fontweight("bold" if method == FEDMAP else "normal")
    better = "Further right is better" if METRICS[facts.metric].ideal == 1.0 else "Further left is better"
    caption = (
        f"Each dot is a site (its mean over seeds), each box the middle half of the sites with their median "
        f"(the median alone for fewer than {_FEWEST_FOR_BOX} sites); {better.lower()}, the dotted line is "
        "FedMAP's median, and a method without a dot has no model for that tier."
    )
    return figure, caption


def _box(axes: Axes, place: int, method: ShownMethod, values: Sequence[float]) -> None:
    fill = _FILLS[method.role]
    strong = method.role == "fedmap"
    if len(values) >= _FEWEST_FOR_BOX:
        box = axes.boxplot(
            [list(values)],
            positions=[place],
            orientation="horizontal",
            widths=0.62,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            medianprops={
                "color": "#ffffff" if strong else INK,
                "linewidth": 1.8,
                "zorder": 5 if strong else 2,
            },
            whiskerprops={"color": "#8a949e"},
            capprops={"color": "#8a949e"},
        )
        box["boxes"][0].set(facecolor=fill, edgecolor="#8a949e", alpha=0.95)
        if method.role == "oracle":
            box["boxes"][0].set_hatch("////")
    elif len(values) > 1:
        axes.plot([np.median(values)] * 2, [place - 0.32, place + 0.32], color=method.colour, linewidth=1.6)
    jitter = np.random.default_rng(place).uniform(-0.2, 0.2, len(values)) if len(values) > 3 else 0.0
    size, alpha = (5, 0.35) if len(values) > _MANY_SITES else (16, 0.75)
    colour = method.colour if len(values) < _FEWEST_FOR_BOX or not strong else "#003a5c"
    axes.scatter(
        values,
        np.full(len(values), place) + jitter,
        s=size,
        color=colour,
        alpha=alpha,
        linewidths=0,
        zorder=3,
    )


@drawing("convergence", "Convergence over the rounds")
def draw_convergence(facts: Facts) -> tuple[Figure, str] | str:
    """The plan's metric on validation rows by round: methods on the left, FedMAP's variants on the right."""
    curves = _curves(facts.rounds)
    if not curves:
        return "None of these methods has models to look at between rounds."
    families = {
        "Methods": [m for m in facts.description.methods if m in curves and shown(m).role != "variant"],
        "FedMAP and its variants": [
            m for m in facts.description.methods if m in curves and shown(m).role in ("fedmap", "variant")
        ],
    }
    if len(families["FedMAP and its variants"]) < 2:
        families.pop("FedMAP and its variants")
    figure = new_figure(4.6)
    panels = figure.subplots(1, len(families), sharey=True, squeeze=False)[0]
    label = metric_label(facts.metric)
    for axes, (family, methods) in zip(panels, families.items(), strict=True):
        style(axes, family, "round", label if axes is panels[0] else "")
        for method in methods:
            _curve(axes, shown(method), curves[method])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        columns = 2 if len(methods) <= 8 else 3
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, handlelength=2.8)
    caption = (
        f"{label} of the models that T1 sites use, on validation patients (median over sites, mean over "
        "seeds): a line that is not yet level at its right end has not converged within these rounds."
    )
    return figure, caption


def _curves(rounds: Sequence[RoundFact]) -> dict[str, dict[int, float]]:
    """Method → round → mean over seeds."""
    found = means((fact.method, fact.round, fact.personal) for fact in rounds if fact.personal is not None)
    return {method: dict(sorted(points.items())) for method, points in found.items()}


def _curve(axes: Axes, method: ShownMethod, points: dict[int, float]) -> None:
    width = 2.4 if method.role == "fedmap" else 1.3
    axes.plot(list(points), list(points.values()), linewidth=width, **line_of(method))


@drawing("calibration", "Calibration: predicted against observed risk")
def draw_calibration(facts: Facts, statistics: Statistics) -> tuple[Figure, str] | str:
    """Predicted against observed risk: FedMAP, individual training and the best other method."""
    tiers = [tier for tier in (1, 2, 3) if any(b.tier == tier for b in facts.calibration)]
    if facts.description.task == "multiclass":
        return "A task with more than two classes has no single risk to calibrate."
    missing = _uncalibrated(facts, tiers)
    if not tiers:
        return f"No tier has calibration bins in this folder.{missing}"
    side = 3.9 if len(tiers) == 1 else 3.2  # of a panel with its labels
    figure = new_figure(side + 0.95, width=side * len(tiers))
    panels = figure.subplots(1, len(tiers), squeeze=False)[0]
    for axes, tier in zip(panels, tiers, strict=True):
        style(
            axes, f"T{tier}", "predicted risk (%)", "observed (%)" if axes is panels[0] else "", grid="both"
        )
        most = 0.0
        for method in _calibrated(facts, statistics, tier):
            most = max(most, _calibration(axes, method, [b for b in facts.calibration if b.tier == tier]))
        limit = 100 * min(1.0, most * 1.08)
        axes.plot([0, limit], [0, limit], color=MUTED, linewidth=0.9, linestyle=":", zorder=1)
        axes.set_xlim(0, limit)
        axes.set_ylim(0, limit)
        axes.set_aspect("equal")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, handlelength=2.4)
    horizon = facts.description.plan.task.horizon
    by_then = ""
    if facts.description.task == "cox" and horizon is not None:
        unit = facts.description.plan.task.time_unit or "time units"
        by_then = f" within {horizon:g} {unit} (Kaplan-Meier)"
    caption = (
        f"Points on the dotted diagonal predict what happens{by_then}; above it the risk is underestimated, "
        "below it overestimated. Patients of a tier's sites in bins of similar risk, bins with small counts "
        "joined; bars: 95 % intervals, first seed."
    )
    return figure, caption + missing


def _uncalibrated(facts: Facts, tiers: Sequence[int]) -> str:
    """Tiers that have sites and no panel, and why: as far as the folder tells."""
    measured = {tier for tier, _, _ in facts.values}
    said = ""
    for tier in (1, 2, 3):
        if not facts.tier(tier) or tier in tiers:
            continue
        why = "no model could be measured there"
        if tier in measured:
            why = (
                "at each of its sites the test patients with or without the outcome are fewer than "
                f"{facts.description.plan.limits.min_cell}, even with all bins joined, and are not shown"
            )
            if facts.description.task == "cox":
                why += ", or no model there gives a risk at the horizon"
        said += f" No panel for T{tier}: {why}."
    return said


def _calibrated(facts: Facts, statistics: Statistics, tier: int) -> list[ShownMethod]:
    """At most four methods, so that curves can be told apart."""
    has = {b.method for b in facts.calibration if b.tier == tier}
    found = statistics.tier(tier)
    others = [row for row in (found.methods if found else ()) if shown(row.method).role == "baseline"]
    others.sort(key=lambda row: (row.ranked is None, abs(row.median - METRICS[facts.metric].ideal)))
    wanted = [FEDMAP, ALONE, *(row.method for row in others[:1]), ORACLE]
    chosen = [method for method in wanted if method in has]
    return [shown(method) for method in (chosen or sorted(has)[:4])]


def _calibration(axes: Axes, method: ShownMethod, bins: Sequence[BinFact]) -> float:
    """Draws the first seed's curve and says how far the axes must reach."""
    first = min(b.seed for b in bins if b.method == method.name)
    own = sorted((b for b in bins if b.method == method.name and b.seed == first), key=lambda b: b.predicted)
    x = [100 * b.predicted for b in own]
    y = [100 * b.observed for b in own]
    bars = [[100 * (b.observed - b.low) for b in own], [100 * (b.high - b.observed) for b in own]]
    strong = method.role == "fedmap"
    width, alpha = (2.0, 1.0) if strong else (1.1, 0.85)
    look = {"linewidth": width, "elinewidth": 0.8, "alpha": alpha, **line_of(method)}
    axes.errorbar(x, y, yerr=np.clip(bars, 0, None), **look)
    return max((max(b.predicted, b.high) for b in own), default=math.nan)
