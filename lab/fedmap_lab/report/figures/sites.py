"""The sites themselves: how large they are, what weight they have, and which of them gain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from fedmap.metrics import METRICS, metric_label
from fedmap_lab.report.facts.reading import Facts, SiteFact
from fedmap_lab.report.facts.shown_methods import ALONE, FEDMAP, shown
from fedmap_lab.report.facts.statistics import Statistics
from fedmap_lab.report.figures.pictures import INK, MUTED, drawing, new_figure, shortened, style
from fedmap_lab.statistics.who_gains import GainAgainstAlone
from fedmap_lab.wording import counted, p_words

_LABELLED = 30  # sites: more names would not be readable
_TIER_COLOURS = {1: "#1f2933", 2: "#7b8794", 3: "#b8bfc7"}


@drawing("gain-against-alone", "Who gains: FedMAP's gain against training alone")
def draw_gain_against_alone(facts: Facts, statistics: Statistics) -> tuple[Figure, str] | str:
    """FedMAP's gain at each site against how well the site does alone, a panel a tier."""
    found = [one for one in statistics.who_gains if one.found.method == FEDMAP and one.found.sites]
    if not found:
        absent = [shown(m).label for m in (FEDMAP, ALONE) if m not in facts.description.methods]
        why = f"{' and '.join(absent)} not in this comparison" if absent else "no site has both figures"
        return f"There is nothing to set against each other: {why}."
    figure = new_figure(4.0, width=max(5.2, 4.8 * len(found)))
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    label = metric_label(facts.metric)
    for axes, one in zip(panels, found, strict=True):
        style(
            axes, f"T{one.tier}, {counted(len(one.found.sites))}", f"{label}, trained alone", "", grid="both"
        )
        _gains(axes, one.found)
    panels[0].set_ylabel("gain with FedMAP", fontsize=9)
    weak = "left" if METRICS[facts.metric].ideal == 1.0 else "right"
    caption = (
        "Each dot is a site; above the line at zero it does better with FedMAP than alone. Sites on the "
        f"{weak} are weakest alone; a falling line says that they gain most (part of that is chance: "
        "Oldham's correlation in who_gains.csv is free of it). The band is the line's 95 % "
        "interval, drawn from six sites on."
    )
    if weak == "right":
        caption = caption.replace("falling", "rising")
    return figure, caption


def _gains(axes: Axes, found: GainAgainstAlone) -> None:
    axes.axhline(0, color=INK, linewidth=0.9)
    many = len(found.sites) > _LABELLED
    colour = shown(FEDMAP).colour
    axes.scatter(
        found.alone, found.gain, s=16 if many else 30, color=colour, alpha=0.7, linewidths=0, zorder=3
    )
    if len(found.sites) <= 8:
        for site, x, y in zip(found.sites, found.alone, found.gain, strict=True):
            right = x <= (min(found.alone) + max(found.alone)) / 2
            axes.annotate(
                shortened(site),
                (x, y),
                (6 if right else -6, 4),
                textcoords="offset points",
                ha="left" if right else "right",
                fontsize=8,
            )
        axes.margins(x=0.22, y=0.18)
    if found.fit is not None:
        axes.fill_between(
            found.fit.grid, found.fit.low, found.fit.high, color=colour, alpha=0.15, linewidth=0
        )
        axes.plot(found.fit.grid, found.fit.line, color=colour, linewidth=1.6)
    said = found.note
    if found.spearman is not None and found.spearman_p is not None:
        said = f"Spearman {found.spearman:+.2f} ({p_words(found.spearman_p)})"
        if found.oldham is not None and found.oldham_p is not None:
            said += f", Oldham {found.oldham:+.2f} ({p_words(found.oldham_p)})"
    axes.text(0.0, -0.2, said.replace("-", "−"), transform=axes.transAxes, fontsize=8, color=MUTED, va="top")


@drawing("site-sizes", "Size of the sites and share of patients with the outcome")
def draw_sizes(facts: Facts) -> tuple[Figure, str] | str:
    """A ring of sites: the bar's length is the number of rows, its colour the share with the outcome."""
    if not facts.sites:
        return "No site is left after the checks."
    figure = new_figure(6.4, width=7.6)
    axes = figure.add_subplot(projection="polar")  # its texts may stand outside the circle
    assert isinstance(axes, PolarAxes)
    ordered = sorted(facts.sites, key=lambda site: (site.tier, -site.rows, site.name))
    gap = max(1.0, 0.04 * len(ordered))
    tiers = sorted({site.tier for site in ordered})
    slots = len(ordered) + gap * len(tiers)
    width = 2 * math.pi / slots
    shares = [site.outcome_share for site in ordered if site.outcome_share is not None]
    scale = Normalize(min(shares, default=0.0), max(shares, default=1.0) or 1.0)
    if shares and scale.vmin == scale.vmax:
        scale = Normalize(0.0, 2 * shares[0])
    colours = mpl.colormaps["viridis_r"]
    most = math.sqrt(max(1, *(site.rows for site in ordered)))
    place = 0.0
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    for tier in tiers:
        own = [site for site in ordered if site.tier == tier]
        start = place
        for site in own:
            _spoke(axes, site, (place + 0.5) * width, 0.86 * width, scale, colours, most, len(ordered))
            place += 1
        middle = (start + len(own) / 2) * width
        arc = np.linspace(start * width, place * width, 40)
        axes.plot(
            arc, np.full(40, 0.30 * most), color=_TIER_COLOURS[tier], linewidth=3, solid_capstyle="butt"
        )
        axes.text(middle, 0.18 * most, f"T{tier}", ha="center", va="center", fontsize=9, fontweight="bold")
        place += gap
    _rings(axes, most, ordered, -math.degrees(gap * width / 2))
    if shares:
        bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, shrink=0.55, pad=0.12)
        bar.set_label("share of patients with the outcome", fontsize=8.5)
        bar.ax.tick_params(labelsize=8)
        bar.ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    hidden = len(ordered) - len(shares)
    grey = ""
    if hidden and shares:
        grey = f"; grey: not shown, because counts are small ({counted(hidden)})"
    elif hidden:
        grey = (
            "; the share of outcomes is not shown, because counts are small or the task has no single outcome"
        )
    caption = (
        "Each bar is a site, sorted by size within its tier: the longer, the more patients (length by square "
        f"root, see the rings; small parts are not counted), the darker, the larger the share with the "
        f"outcome{grey}."
    )
    return figure, caption


def _spoke(
    axes: PolarAxes,
    site: SiteFact,
    angle: float,
    width: float,
    scale: Normalize,
    colours: mpl.colors.Colormap,
    most: float,
    sites: int,
) -> None:
    share = site.outcome_share
    known = share is not None
    length = 0.68 * math.sqrt(site.rows)
    axes.bar(
        [angle],
        [length],
        width=width,
        bottom=0.32 * most,
        color=colours(scale(share)) if share is not None else "#d0d5da",
        edgecolor="white" if sites <= 80 else "none",
        linewidth=0.4,
        hatch=None if known or sites > 80 else "///",
    )
    if sites <= _LABELLED:
        turn = 90 - math.degrees(angle)
        left = math.pi < angle % (2 * math.pi) < 2 * math.pi
        axes.text(
            angle,
            0.35 * most + length,
            " " + shortened(site.name) + " ",
            rotation=turn + 180 if left else turn,
            rotation_mode="anchor",
            ha="right" if left else "left",
            va="center",
            fontsize=7.5,
        )


def _rings(axes: PolarAxes, most: float, sites: list[SiteFact], angle: float) -> None:
    """Two or three round numbers of rows, written at an angle where no bar stands."""
    largest = max(site.rows for site in sites)
    step = 10 ** math.floor(math.log10(max(largest, 1)))
    rows = [n for n in (step // 4, step, 2 * step, 4 * step, 8 * step) if 0 < n <= largest]
    axes.set_rgrids([0.32 * most + 0.68 * math.sqrt(n) for n in rows], [f"{n:,}" for n in rows], angle=angle)
    axes.tick_params(axis="y", labelsize=7.5, labelcolor=MUTED)
    for text in axes.get_yticklabels():
        text.set_horizontalalignment("center")
    axes.set_xticks([])
    axes.set_ylim(0, (1.25 if len(sites) <= _LABELLED else 1.06) * most)
    axes.spines["polar"].set_visible(False)
    axes.grid(color="#dfe3e8", linewidth=0.7)


@drawing("weights", "Weight ω of each site in the global model")
def draw_weights(facts: Facts) -> tuple[Figure, str] | str:
    """ω̄ of each T1 site in FedMAP's last global model, beside its share of the patients where all sizes are
    known."""
    weights = facts.weights.get(FEDMAP)
    if not weights:
        return "FedMAP was not run here, so there are no weights ω to show."
    if len(weights) == 1:
        return "Only one site trained: it has all the weight."
    ordered = sorted(weights, key=lambda site: -weights[site])
    shares, why_none = _patient_shares(facts, ordered)
    colour = shown(FEDMAP).colour
    places = np.arange(1, len(ordered) + 1)
    if len(ordered) <= _LABELLED:
        figure = new_figure(1.3 + 0.26 * len(ordered), width=7.6)
        axes = figure.subplots()
        style(axes, x="share (%)", grid="x")
        axes.barh(places, [100 * weights[s] for s in ordered], height=0.66, color=colour, label="weight ω")
        if shares:
            axes.scatter([100 * s for s in shares], places, marker="D", s=26, color=INK, zorder=3)
        axes.set_yticks(places, [shortened(site) for site in ordered])
        axes.set_ylim(len(ordered) + 0.6, 0.4)
    else:
        figure = new_figure(3.8, width=8.6)
        axes = figure.subplots()
        style(axes, x="sites, from the largest weight to the smallest", y="share (%)")
        axes.fill_between(places, [100 * weights[s] for s in ordered], step="mid", color=colour, alpha=0.85)
        axes.bar([0], [0], color=colour, label="weight ω")
        if shares:
            axes.scatter(places, [100 * s for s in shares], marker="D", s=7, color=INK, zorder=3, alpha=0.8)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0.5, len(ordered) + 0.5)
    if shares:
        axes.scatter([], [], marker="D", s=26, color=INK, label="share of these sites' patients")
    figure.legend(loc="outside upper right", ncols=2)
    caption = "How much each site counts in FedMAP's global model after the last round (mean over seeds)"
    if shares:
        caption += (
            "; where the bar is longer than the diamond, the site counts for more than its share of the "
            "patients."
        )
    else:
        caption += f". {why_none}"
    return figure, caption


def _patient_shares(facts: Facts, names: Sequence[str]) -> tuple[list[float], str]:
    """Shares of the sites' patients, or none and why: one size that is not known makes every share false."""
    sites = {site.name: site for site in facts.sites if site.whole}
    unknown = [name for name in names if name not in sites]
    if not unknown:
        total = sum(sites[name].rows for name in names) or 1
        return [sites[name].rows / total for name in names], ""
    return [], (
        f"Shares of patients are not drawn: the size of {counted(len(unknown))} is not known, because small "
        "counts are not shown, and without it no share is right."
    )
