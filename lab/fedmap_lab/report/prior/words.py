"""What a prior learned, in sentences for people who know the study and not the mathematics."""

from __future__ import annotations

from collections import Counter

from fedmap_lab.report.facts.shown_methods import shown
from fedmap_lab.report.prior.facts import CLEAR_GROUPS, WEAK_GROUPS, LayerFacts, PriorFacts
from fedmap_lab.wording import counted, joined

_NAMED = 6
_LITTLE = 0.2
_MUCH = 1.5  # a layer is called loose or tight where it differs from another by this factor


def explain_layers(facts: PriorFacts) -> list[str]:
    """Which layers are held tight or loose, and by what."""
    label = shown(facts.method).label
    loosest = max(facts.layers, key=lambda layer: layer.spread)
    tightest = min(facts.layers, key=lambda layer: layer.spread)
    said = []
    if loosest.spread == 0:
        return [f"{label}: every site's model equals the global model μ, so nothing was personalised."]
    if len(facts.sites) == 1:
        said.append("Only one site trained: its distance to μ stands for the spread between sites.")
    if len(facts.layers) == 1:
        said.append(f"The model has only layer {tightest.label}, so layers cannot be compared.")
    elif loosest.spread < _MUCH * tightest.spread:
        said.append(f"Sites differ from μ by about the same in every layer (by {_range(facts.layers)}).")
    else:
        said.append(
            f"Sites go furthest from the global model in layer {loosest.label} (on average "
            f"{loosest.spread:.3g} a parameter) and stay closest in layer {tightest.label} "
            f"({tightest.spread:.3g})."
        )
    return [*said, *_pull(facts)]


def _pull(facts: PriorFacts) -> list[str]:
    """What the penalty itself does, layer by layer."""
    if facts.floor is None:
        return ["This method has no learned prior: the distances come from its own rule and from the data."]
    bent = [layer for layer in facts.layers if layer.curvature is not None]
    if not facts.has_convex_part:
        return [
            f"The prior is quadratic only: it pulls every parameter of every layer to μ equally hard "
            f"(α = {facts.alpha:g}, curvature {facts.floor:.3g}). Differences between layers come from the "
            "data."
        ]
    said = []
    if bent:
        tight = max(bent, key=lambda layer: layer.curvature or 0.0)
        loose = min(bent, key=lambda layer: layer.curvature or 0.0)
        high, low = tight.curvature or 0.0, loose.curvature or 0.0
        if high < 1.05 * facts.floor:
            said.append(
                "The learned convex part hardly bends: along the ways that sites went, the penalty bends as "
                f"its quadratic part alone does ({facts.floor:.3g}) in every layer. What it adds there is a "
                "constant or a straight slope, which holds no site harder the further it goes."
            )
        else:
            said.append(
                f"The prior holds layer {tight.label} tightest: the penalty bends {high / facts.floor:.2f} "
                f"times as much there as its quadratic part alone; it leaves layer {loose.label} loosest "
                f"({low / facts.floor:.2f} times)."
            )
    shares = [(layer, share) for layer in facts.layers if (share := layer.convex_share) is not None]
    if shares:
        most, share = max(shares, key=lambda pair: pair[1])
        where = f", most in layer {most.label} ({_percent(share)})" if len(shares) > 1 else ""
        convex = sum(layer.convex or 0.0 for layer in facts.layers)
        total = convex + sum(layer.quadratic or 0.0 for layer in facts.layers)
        said.append(
            f"The convex part is {_percent(convex / total if total else 0.0)} of the whole penalty R at the "
            f"sites' models{where}."
        )
        if convex > 0 and total > 0 and convex / total > _LITTLE:
            moving = abs(convex - (facts.convex_at_mu or 0.0)) / convex
            if moving < _LITTLE:
                part = "nearly all" if moving < 0.005 else _percent(1 - moving)
                said.append(
                    f"But {part} of the convex part is what every site pays already at μ, wherever it goes."
                )
    return said


def explain_sites(facts: PriorFacts) -> list[str]:
    """Which sites resemble each other."""
    count = len(facts.sites)
    if count == 1:
        return ["Only one site trained: there is nothing to compare it with."]
    if not facts.distances.any():
        return ["All sites have the same model."]
    far = max(range(count), key=lambda k: facts.from_mu[k])
    near = min(range(count), key=lambda k: facts.from_mu[k])
    pairs = [(facts.distances[j, k], j, k) for k in range(count) for j in range(k)]
    _, one, other = min(pairs)
    said = [
        f"{facts.sites[far]} went furthest from the global model ({facts.from_mu[far]:.3g}), "
        f"{facts.sites[near]} stayed closest ({facts.from_mu[near]:.3g}).",
    ]
    if count > 2:
        said.append(f"The two most alike are {facts.sites[other]} and {facts.sites[one]}.")
    if facts.groups is None:
        return [*said, f"{count} sites are too few to look for groups."]
    measure = f"mean silhouette {facts.groups.silhouette:.2f}"
    if not facts.groups.found:
        return [
            *said,
            f"No groups: the best division (in {facts.groups.count}) hardly sets sites apart ({measure}; "
            f"{WEAK_GROUPS} and more would be a weak sign, {CLEAR_GROUPS} and more clear).",
        ]
    groups, outliers = facts.groups.count - facts.groups.outliers, facts.groups.outliers
    parts = [counted(groups, "group")] if groups else []
    parts += [counted(outliers, "outlier")] if outliers else []
    sure = "Clear:" if facts.groups.clear else f"A weak sign, not clear below {CLEAR_GROUPS}:"
    said.append(f"{sure} sites fall into {joined(parts)} ({measure}).")
    return said + [_group(facts, number) for number in range(1, facts.groups.count + 1)]


def _group(facts: PriorFacts, number: int) -> str:
    assert facts.groups is not None
    members = [k for k, group in enumerate(facts.groups.of) if group == number]
    if len(members) == 1:
        return f"Outlier: {facts.sites[members[0]]}."
    names = ", ".join(facts.sites[k] for k in members[:_NAMED])
    more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    regions = Counter(facts.regions[k] for k in members if facts.regions[k])
    where = ""
    if regions and len(set(facts.regions)) > 1:
        region, times = regions.most_common(1)[0]
        if times >= 2 and 2 * times > len(members):
            where = f"; {times} of {len(members)} in {region}"
    return f"Group {number}, {counted(len(members))}: {names}{more}{where}."


def _range(layers: tuple[LayerFacts, ...]) -> str:
    spreads = [layer.spread for layer in layers]
    return f"{min(spreads):.3g} to {max(spreads):.3g} a parameter"


def _percent(share: float) -> str:
    return "less than 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"
