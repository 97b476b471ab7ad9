"""What the prior learned, as pictures: its convex part by round and by layer, and which sites are alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.cluster.hierarchy import dendrogram

from fedmap_lab.report.facts.reading import RoundFact, means
from fedmap_lab.report.facts.shown_methods import FEDMAP, ShownMethod, shown
from fedmap_lab.report.figures.pictures import (
    INK,
    MUTED,
    Drawn,
    drawing,
    line_of,
    new_figure,
    shortened,
    style,
)
from fedmap_lab.report.prior.facts import PriorFacts

_GROUP_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_GROUP_MARKERS = ("o", "s", "^", "D", "v", "P")
_LABELLED = 40
_NUMBERED = 8
_BY_LAYER = ("prior-by-layer", "What the prior holds tight, by layer")
_DISTANCES = ("site-distances", "Distances between the sites' models")
_GROUPS = ("site-groups", "Sites that resemble each other")
NO_MODELS = "No models were kept in this folder, so there is nothing to look at."


def draw_prior(facts: PriorFacts | None) -> tuple[Drawn, ...]:
    """All figures that are made from the models."""
    if facts is None:
        return tuple(Drawn(*figure, NO_MODELS) for figure in (_BY_LAYER, _DISTANCES, _GROUPS))
    return draw_prior_by_layer(facts), draw_distances(facts), draw_groups(facts)


@drawing("prior-by-round", "The learned part of the prior, by round")
def draw_prior_by_round(rounds: Sequence[RoundFact]) -> tuple[Figure, str] | str:
    """Left: R of FedMAP with its convex part. Right: the convex share, of variants too."""
    found = _penalties(rounds)
    if FEDMAP not in found and not any(
        convex > 0 for points in found.values() for _, convex in points.values()
    ):
        return "No method here has a prior, so there is no penalty to look at."
    convex = {m: p for m, p in found.items() if any(part > 0 for _, part in p.values())}
    if not convex:
        return "The prior is quadratic only: it has no convex part whose share could be followed."
    main = FEDMAP if FEDMAP in convex else next(iter(convex))
    figure = new_figure(3.9)
    left, right = figure.subplots(1, 2)
    style(left, f"Penalty R of {shown(main).label}", "round", "R, weighted mean over sites")
    numbers = list(convex[main])
    whole = [convex[main][n][0] for n in numbers]
    part = [convex[main][n][1] for n in numbers]
    colour = shown(main).colour
    left.stackplot(
        numbers,
        [np.subtract(whole, part), part],
        colors=["#d7dbe0", colour],
        labels=["quadratic part", "convex part f"],
    )
    left.legend(loc="best")
    style(right, "Share of R that is the convex part f", "round", "%")
    for method, points in convex.items():
        _share(right, shown(method), points)
    right.set_ylim(0, 105)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, handlelength=2.8)
    caption = (
        "R is what it costs a site to differ from the global model; its quadratic part is fixed by the plan, "
        "its convex part f is learned. A share near zero says that the learned part has hardly any say; a "
        "large share may still be a constant, or a straight slope, that holds no site the harder the further "
        "it goes: the curvature by layer tells whether it bends."
    )
    if main != FEDMAP and FEDMAP in found:
        caption += " FedMAP as the plan has it is quadratic only; its variants with a convex part are shown."
    return figure, caption


def _penalties(rounds: Sequence[RoundFact]) -> dict[str, dict[int, tuple[float, float]]]:
    """Method → round → R and f, mean over seeds; methods without a penalty are left out."""
    known = [fact for fact in rounds if fact.penalty]
    whole = means((fact.method, fact.round, fact.penalty or 0.0) for fact in known)
    part = means((fact.method, fact.round, fact.convex_penalty or 0.0) for fact in known)
    return {m: {n: (whole[m][n], part[m][n]) for n in sorted(points)} for m, points in whole.items()}


def _share(axes: Axes, method: ShownMethod, points: dict[int, tuple[float, float]]) -> None:
    shares = [100 * part / whole for whole, part in points.values()]
    look = line_of(method) | {"markersize": 4, "markevery": max(1, len(points) // 12)}
    axes.plot(list(points), shares, linewidth=2.2 if method.role == "fedmap" else 1.2, **look)


@drawing(*_BY_LAYER)
def draw_prior_by_layer(facts: PriorFacts) -> tuple[Figure, str] | str:
    """Spread of θ_k − μ, share of the convex part, and curvature of R, layer by layer."""
    places = np.arange(len(facts.layers))
    panels_wanted = 1 if facts.floor is None else 3 if facts.has_convex_part else 2
    figure = new_figure(1.5 + 0.34 * len(places), width=2.6 + 2.5 * panels_wanted)
    panels = figure.subplots(1, panels_wanted, sharey=True, squeeze=False)[0]
    colour = shown(facts.method).colour
    style(panels[0], "How far sites go from μ", "root mean square of θ − μ", grid="x")
    panels[0].barh(places, [layer.spread for layer in facts.layers], height=0.62, color=colour)
    if facts.floor is not None:
        axes = panels[1]
        words = "curvature at μ towards the sites\n(dashed: quadratic part alone)"
        style(axes, "How R bends there", words, grid="x")
        bent = [0.0 if layer.curvature is None else layer.curvature for layer in facts.layers]
        axes.barh(places, bent, height=0.62, color="#7b8794")
        axes.axvline(facts.floor, color=INK, linewidth=1.1, linestyle="--")
        axes.set_xlim(0, 1.12 * max(*bent, facts.floor))
    if panels_wanted == 3:
        axes = panels[2]
        style(axes, "Share of R that is f", "%", grid="x")
        shares = [100 * (layer.convex_share or 0.0) for layer in facts.layers]
        axes.barh(places, shares, height=0.62, color="#56b4e9", hatch="//", edgecolor="white")
        axes.set_xlim(0, 105 if max(shares) > 50 else max(1.0, 1.1 * max(shares)))
    for axes in panels:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    panels[0].set_yticks(places, [layer.label for layer in facts.layers])
    panels[0].set_ylim(len(places) - 0.5, -0.5)
    caption = (
        f"{shown(facts.method).label}, first seed, last round; the first layer is at the top. A long bar "
        "on the left is a layer in which sites really differ."
    )
    if facts.has_convex_part:
        caption += (
            " A curvature beyond the dashed line says that the learned part bends in that layer; on the "
            "right, how much of the layer's penalty is learned."
        )
    elif facts.floor is not None:
        caption += " The prior is quadratic only: it bends equally everywhere."
    return figure, caption


@drawing(*_DISTANCES)
def draw_distances(facts: PriorFacts) -> tuple[Figure, str] | str:
    """‖θ_k − θ_j‖ between the models of all T1 sites, those that resemble each other side by side."""
    if len(facts.sites) < 2:
        return "Only one site trained: there is no other to compare it with."
    if not facts.distances.any():
        return "All sites have the same model: every distance is zero."
    count = len(facts.sites)
    size = 4.4 if count <= _NUMBERED else 5.6 if count <= _LABELLED else 6.2
    figure = new_figure(size, width=size + 1.6)
    axes = figure.subplots()
    ordered = facts.distances[np.ix_(facts.order, facts.order)]
    apart = ordered[~np.eye(count, dtype=bool)]
    low = float(apart.min()) if np.ptp(apart) > 0 else 0.0
    hidden = np.ma.masked_where(np.eye(count, dtype=bool), ordered)  # a site and itself: no distance to show
    axes.set_facecolor("#eef0f2")
    image = axes.imshow(hidden, cmap="cividis_r", vmin=low)
    names = [shortened(facts.sites[k], 16) for k in facts.order]
    if count <= _LABELLED:
        axes.set_xticks(range(count), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7.5)
        axes.set_yticks(range(count), names, fontsize=7.5)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{count} sites, in the order of the tree", fontsize=9)
    if count <= _NUMBERED:
        middle = (low + ordered.max()) / 2
        for (row, column), value in np.ndenumerate(ordered):
            if row == column:
                continue
            ink = "#ffffff" if value > middle else INK
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.75)
    bar.set_label("distance of the parameters, ‖θ − θ'‖", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    caption = (
        f"{shown(facts.method).label}, first seed: the lighter a cell, the more alike the models of its "
        "two sites; light squares along the diagonal are groups of similar sites. The diagonal itself is "
        "left out."
    )
    return figure, caption


@drawing(*_GROUPS)
def draw_groups(facts: PriorFacts) -> tuple[Figure, str] | str:
    """A tree of sites by θ_k − μ, and a map of the two directions in which they differ most."""
    if facts.tree is None or not facts.distances.any():
        return "One site, or all with the same model: there are no groups to look for."
    count = len(facts.sites)
    figure = new_figure(min(7.5, max(3.8, 1.4 + 0.17 * min(count, _LABELLED))))
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    style(left, "Tree (Ward)", "distance at which groups join", grid="x")
    labels = [shortened(site, 18) for site in facts.sites]
    dendrogram(
        facts.tree,
        ax=left,
        orientation="right",
        labels=labels,
        no_labels=count > _LABELLED,
        color_threshold=0,
        above_threshold_color="#66717d",
        leaf_font_size=7.5,
    )
    left.spines[["left"]].set_visible(False)
    style(
        right,
        "Map: the two main directions",
        f"1st direction ({100 * facts.explained[0]:.0f} % of the differences)",
        f"2nd direction ({100 * facts.explained[1]:.0f} %)",
        grid="both",
    )
    _map(right, facts)
    caption = (
        f"{shown(facts.method).label}, first seed, by θ − μ. Left: the shorter the way "
        "on which two sites join, the more alike they are. Right: sites that lie close together are alike; "
        "the axes have no meaning of their own. "
    )
    if facts.groups is None:
        caption += "Too few sites to look for groups."
    elif facts.groups.clear:
        caption += "Colour and marker are the group."
    elif facts.groups.found:
        caption += "Colour and marker are the group; the groups are weak."
    else:
        caption += "No groups were found, so none are marked."
    return figure, caption


def _map(axes: Axes, facts: PriorFacts) -> None:
    found = facts.groups is not None and facts.groups.found
    groups = facts.groups.of if found and facts.groups is not None else (1,) * len(facts.sites)
    for number in sorted(set(groups)):
        members = [k for k, group in enumerate(groups) if group == number]
        axes.scatter(
            facts.places[members, 0],
            facts.places[members, 1],
            s=34 if len(groups) <= _LABELLED else 16,
            color=_GROUP_COLOURS[number - 1],
            marker=_GROUP_MARKERS[number - 1],
            alpha=0.85,
            linewidths=0,
            label=f"group {number} ({len(members)})" if len(members) > 1 else "outlier",
            zorder=3,
        )
    axes.set_aspect("equal", adjustable="datalim")  # distances on the map are then true
    axes.axhline(0, color=MUTED, linewidth=0.6)
    axes.axvline(0, color=MUTED, linewidth=0.6)
    if len(groups) <= 12:
        for k, site in enumerate(facts.sites):
            axes.annotate(
                shortened(site, 16), facts.places[k], (5, 4), textcoords="offset points", fontsize=7.5
            )
        axes.margins(x=0.25, y=0.15)
    if found:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
