"""Regions as tiles, and subgroups side by side: who is left behind, before and after."""

from __future__ import annotations

import math
import textwrap

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from fedmap.metrics import metric_label
from fedmap_lab.report.facts.reading import Facts
from fedmap_lab.report.facts.shown_methods import ALONE, FEDMAP, shown
from fedmap_lab.report.facts.statistics import REGION, EquityBy, Statistics
from fedmap_lab.report.figures.pictures import INK, MUTED, drawing, new_figure, shortened, style
from fedmap_lab.statistics.who_gains import GroupRow
from fedmap_lab.wording import signed

_COLOURS = mpl.colormaps["RdBu"]


@drawing("regions", "Regions: gain with FedMAP")
def draw_regions(facts: Facts, statistics: Statistics) -> tuple[Figure, str] | str:
    """A tile a region, coloured by the median gain of its sites with FedMAP."""
    found = [one for one in statistics.equity if one.by == REGION and one.found.method == FEDMAP]
    if not found:
        return _why_no_regions(facts)
    if all(row.median_gain is None for one in found for row in one.found.groups):
        return "Every region has fewer than three sites of a tier, so that none can be shown."
    gains = [abs(row.median_gain) for one in found for row in one.found.groups if row.median_gain is not None]
    scale = Normalize(-max(gains), max(gains)) if max(gains) > 0 else Normalize(-1.0, 1.0)
    columns = [_columns(len(one.found.groups)) for one in found]
    lines = max(math.ceil(len(one.found.groups) / c) for one, c in zip(found, columns, strict=True))
    figure = new_figure(1.2 + 1.25 * lines, width=max(5.0, min(10.0, 1.7 * sum(columns) + 1.2)))
    panels = figure.subplots(1, len(found), squeeze=False, width_ratios=columns)[0]
    for axes, one, across in zip(panels, found, columns, strict=True):
        axes.set_title(f"T{one.tier}", loc="left", fontsize=10)
        for place, row in enumerate(one.found.groups):
            _tile(axes, place % across, place // across, row, scale)
        axes.set_xlim(-0.05, across + 0.05)
        axes.set_ylim(lines + 0.02, -0.05)
        axes.axis("off")
    bar = figure.colorbar(ScalarMappable(scale, _COLOURS), ax=list(panels), shrink=0.7, pad=0.02)
    bar.set_label(f"median gain, {metric_label(facts.metric)}", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    caption = (
        "One tile a region (in alphabetical order, not where they lie): the median of its sites alone → with "
        "FedMAP, and the gain; blue gains, red loses, grey has fewer than three sites and is not shown. "
        "A gain is the median of the differences at the same site, so it can differ in sign from the "
        "difference of the two medians."
    )
    return figure, caption


def _why_no_regions(facts: Facts) -> str:
    missing = [shown(m).label for m in (FEDMAP, ALONE) if m not in facts.description.methods]
    if missing:
        return f"Regions are compared between training alone and FedMAP; {' and '.join(missing)} was not run."
    named = {site.region for site in facts.sites if site.region}
    if len(named) < 2:
        return "The sites name fewer than two regions, so there is nothing to compare."
    return "No tier has sites of two regions with figures both alone and with FedMAP."


def _columns(count: int) -> int:
    return min(count, 3 if count <= 9 else 4)


def _tile(axes: Axes, x: int, y: int, row: GroupRow, scale: Normalize) -> None:
    gain = row.median_gain
    fill = to_rgb("#e6e9ec" if gain is None else _COLOURS(scale(gain)))
    ink = "#ffffff" if _luminance(fill) < 0.3 else INK
    shape = FancyBboxPatch(
        (x + 0.04, y + 0.04),
        0.92,
        0.92,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=fill,
        edgecolor="#9aa5b1",
        linewidth=0.6,
    )
    axes.add_patch(shape)

    def write(down: float, text: str, size: float, colour: str, bold: bool = False) -> None:
        weight = "bold" if bold else "normal"
        axes.text(
            x + 0.5, y + down, text, fontsize=size, color=colour, fontweight=weight, ha="center", va="center"
        )

    write(0.22, textwrap.fill(shortened(row.group, 30), 16), 8, ink, bold=True)
    if gain is None:
        write(0.6, "fewer than\n3 sites", 7.5, MUTED)
        return
    write(0.5, signed(gain), 11, ink)
    write(0.78, f"{row.before:.3f} → {row.after:.3f}\n{row.sites} sites", 7, ink)


def _luminance(colour: tuple[float, float, float]) -> float:
    """Relative luminance, 0 black to 1 white."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@drawing("subgroups", "Groups of patients, alone and with FedMAP")
def draw_subgroups(facts: Facts, statistics: Statistics) -> tuple[Figure, str] | str:
    """A line a category: its median alone and with FedMAP, at T1."""
    found = [
        one
        for one in statistics.equity
        if one.by != REGION
        and one.found.method == FEDMAP
        and any(r.before is not None for r in one.found.groups)
    ]
    if not found:
        return (
            "There is nothing to show: the plan has no category column, or every category has small counts "
            "at all but two sites, or FedMAP or training alone was not run."
        )
    tiers = sorted({one.tier for one in found})
    by_tier = {tier: [one for one in found if one.tier == tier] for tier in tiers}
    keys = list(
        dict.fromkeys(
            (one.by, row.group) for one in found for row in one.found.groups if row.before is not None
        )
    )
    figure = new_figure(1.5 + 0.3 * len(keys), width=max(5.6, 2.2 + 3.6 * len(tiers)))
    panels = figure.subplots(1, len(tiers), squeeze=False, sharey=True)[0]
    label = metric_label(facts.metric)
    for axes, tier in zip(panels, tiers, strict=True):
        style(axes, f"T{tier}", label, grid="x")
        _pairs(axes, by_tier[tier], keys)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    panels[0].set_yticks(range(len(keys)), [f"{column} = {group}" for column, group in keys])
    panels[0].set_ylim(len(keys) - 0.5, -0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    caption = (
        "The median over sites among the patients of each category: from the open circle (sites alone) to "
        "the blue dot (with FedMAP). Gains are paired at the same site (see the tables), so they can differ "
        "in sign from the difference of the two medians. Categories with small counts, or at fewer than "
        "three sites, are not shown."
    )
    return figure, caption


def _pairs(axes: Axes, found: list[EquityBy], keys: list[tuple[str, str]]) -> None:
    colour = shown(FEDMAP).colour
    rows = {(one.by, row.group): row for one in found for row in one.found.groups if row.before is not None}
    for place, key in enumerate(keys):
        row = rows.get(key)
        if row is not None and row.before is not None and row.after is not None:
            axes.plot([row.before, row.after], [place, place], color="#9aa5b1", linewidth=1.6, zorder=1)
            axes.scatter([row.before], [place], s=38, facecolor="white", edgecolor=INK, zorder=2)
            axes.scatter([row.after], [place], s=38, color=colour, zorder=3)
    axes.scatter([], [], s=38, facecolor="white", edgecolor=INK, label="alone")
    axes.scatter([], [], s=38, color=colour, label="FedMAP")
