"""The opening paragraph: what was compared, who won where, and where nothing can be said.

Honest by construction: a first place is named as such only with what a test says of it, a loss of FedMAP is
said as plainly as a win, and where sites are too few for a test the text says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.metrics import metric_label
from fedmap_lab.report.facts.reading import Facts
from fedmap_lab.report.facts.shown_methods import ALONE, FEDMAP, ORACLE, is_contender, shown
from fedmap_lab.report.facts.statistics import MethodAtTier, Statistics, TierStatistics, closeness
from fedmap_lab.statistics.caveats import Circumstances, caveats
from fedmap_lab.statistics.paired import LEVEL, PairedResult
from fedmap_lab.wording import counted, joined, p_words

_TIER_WORDS = {1: "train together", 2: "fine-tune the shared model once", 3: "only use it"}
_TIER_WORD = {1: "trains with the others", 2: "fine-tunes the shared model once", 3: "only uses it"}


@dataclass(frozen=True)
class Verdict:
    opening: str
    tiers: tuple[tuple[int, str], ...]
    caveats: tuple[str, ...]


def judge(facts: Facts, statistics: Statistics) -> Verdict:
    return Verdict(
        opening=_opening(facts, statistics),
        tiers=tuple((tier.tier, _tier(facts, statistics.metric, tier)) for tier in statistics.tiers),
        caveats=tuple(_caveats(facts, statistics)),
    )


def _opening(facts: Facts, statistics: Statistics) -> str:
    described = facts.description
    run = {method for _, method, _ in facts.values}
    there = [tier for tier in (1, 2, 3) if facts.tier(tier)]
    tiers = [_sites_of(len(facts.tier(tier)), tier) for tier in there]
    of_sites = f"{counted(len(facts.sites))}: {joined(tiers)}"
    if len(there) == 1:
        of_sites = _sites_of(len(facts.sites), there[0], "site")
    seeds = len(described.seeds)
    text = (
        f"{counted(len(run), 'method')} {'were' if len(run) != 1 else 'was'} compared at "
        f"{of_sites}. Each was trained "
        f"{'once' if seeds == 1 else f'with {seeds} random seeds'} over "
        f"{counted(described.rounds, 'round')} and "
        f"judged by {_measure(facts.metric)} on patients that no model had seen."
    )
    if not statistics.tiers:
        return text + " No method could be scored at any site, so nothing can be said about who is best."
    return text


def _sites_of(count: int, tier: int, word: str = "") -> str:
    """'1 that fine-tunes the shared model once (T2)'."""
    number = counted(count, word) if word else str(count)
    return f"{number} that {(_TIER_WORD if count == 1 else _TIER_WORDS)[tier]} (T{tier})"


def _tier(facts: Facts, metric: str, tier: TierStatistics) -> str:
    fedmap = tier.find(FEDMAP)
    rival = tier.best(metric, without=FEDMAP)
    unranked = _unranked(tier)
    if fedmap is None or fedmap.ranked is None:
        why = _why_absent(facts)
        if rival is None:
            return f"{why} No other method has a figure here."
        return " ".join([f"{why} The best median is that of {_figure(rival)}.", *unranked])
    if rival is None:
        where = "at all of its sites" if unranked else "here"
        only = f"Only FedMAP has a figure {where} (median {fedmap.ranked:.3f}), and nothing stands beside it."
        return " ".join([only, *unranked])
    said = [_race(metric, fedmap, rival), *unranked]
    if fedmap.sites < tier.sites:
        said.append(
            f"Medians here are over the {fedmap.sites} of {tier.sites} sites at which FedMAP has a figure."
        )
    if fedmap.against_alone is not None:
        said.append(_alone(fedmap.against_alone))
    said += _variants(metric, tier, fedmap)
    oracle = tier.find(ORACLE)
    if oracle is not None and oracle.ranked is not None:
        said.append(f"Pooling all patients in one place, which is not allowed, reaches {oracle.ranked:.3f}.")
    return " ".join(said)


def _unranked(tier: TierStatistics) -> list[str]:
    """Methods that could win, and lack a site at which the others are ranked."""
    names = [
        f"{shown(row.method).label} ({row.sites} of {tier.sites} sites)"
        for row in tier.methods
        if is_contender(row.method) and row.ranked is None
    ]
    return [f"Not ranked, because figures at some sites are missing: {joined(names)}."] if names else []


def _race(metric: str, fedmap: MethodAtTier, rival: MethodAtTier) -> str:
    """FedMAP and the best of the others, with what the paired test says of the two."""
    ours, theirs = fedmap.ranked or 0.0, rival.ranked or 0.0
    paired = rival.against_fedmap
    ahead = ""
    if round(ours, 3) == round(theirs, 3):
        first = f"FedMAP and {shown(rival.method).label} have the same median ({ours:.3f})"
    elif closeness(metric, ours) > closeness(metric, theirs):
        ahead = FEDMAP
        first = f"FedMAP came first (median {ours:.3f}), ahead of {_figure(rival)}"
    else:
        ahead = rival.method
        first = f"FedMAP did not come first: {_figure(rival)} is ahead of its {ours:.3f}"
    if paired is None:
        return first + "; the two share no site, so they cannot be tested."
    if paired.p_holm is None:
        return f"{first}; with {counted(paired.sites, 'site')} no test can tell this from chance."
    lean = _lean(paired, ahead)
    if not paired.can_tell:
        return (
            f"{first}{lean}; with {_that_differ(paired)} and so many methods to correct for, no "
            "test can tell this from chance."
        )
    if paired.p_holm >= LEVEL:
        sure = p_words(paired.p_holm)
        return (
            f"{first}{lean}; the difference may be chance ({sure}): the two cannot be told apart with these "
            "sites."
        )
    return (
        f"{first}; paired over {counted(paired.sites, 'site')}, {_named(paired.favours)} is better "
        f"beyond chance ({p_words(paired.p_holm)})."
    )


def _lean(paired: PairedResult, ahead: str) -> str:
    """Whom the pairs favour, where the medians or the median gain point to another; more is not claimed."""
    if not paired.favours or {ahead, _gainer(paired) or paired.favours} == {paired.favours}:
        return ""
    return f", while the pairs lean to {_named(paired.favours)}"


def _that_differ(paired: PairedResult) -> str:
    """What a test has to go by: sites where two methods tie say nothing."""
    sites = counted(paired.sites, "site")
    return sites if paired.untied == paired.sites else f"only {paired.untied} of {sites} not tied"


def _gainer(paired: PairedResult) -> str:
    """By the median gain alone; neither where it is zero."""
    gain = paired.median_gain
    return paired.method if gain > 0 else paired.reference if gain < 0 else ""


def _named(method: str) -> str:
    return "training alone" if method == ALONE else shown(method).label


def _alone(paired: PairedResult) -> str:
    """The median gain says how much, the test whom the pairs favour: the two need not point the same way."""
    better = round(paired.improved * paired.sites)
    change = {paired.method: "gained", paired.reference: "lost"}.get(
        _gainer(paired), "neither gained nor lost"
    )
    size = abs(paired.median_gain)
    amount = "" if not size else f" {size:.3f}" if round(size, 3) else " less than 0.001"
    said = (
        f"Against training alone, sites {change}{amount} at the median, {better} of {paired.sites} did better"
    )
    if paired.p_holm is None or not paired.can_tell:
        return said + "."
    sure = p_words(paired.p_holm)
    if paired.p_holm < LEVEL:
        return f"{said}; paired, {_named(paired.favours)} is better beyond chance ({sure})."
    return f"{said}{_lean(paired, _gainer(paired))}, which may be chance ({sure})."


def _variants(metric: str, tier: TierStatistics, fedmap: MethodAtTier) -> list[str]:
    """A variant that does better is not hidden behind its own method."""
    rows = [
        (row, row.ranked)
        for row in tier.methods
        if shown(row.method).role == "variant" and row.ranked is not None
    ]
    if not rows:
        return []
    best, median = max(rows, key=lambda pair: closeness(metric, pair[1]))
    if closeness(metric, round(median, 3)) <= closeness(metric, round(fedmap.ranked or 0.0, 3)):
        return []
    label = shown(best.method).label
    sure = _sure_of_variant(best.against_fedmap)
    return [f"Of FedMAP's variants, {label} has the better median with {median:.3f}{sure}."]


def _sure_of_variant(paired: PairedResult | None) -> str:
    """A variant cannot win, so its p is not corrected: that can only make it look surer than it is."""
    if paired is None or paired.p is None:
        return ", which may be chance"
    if paired.p >= LEVEL:
        return f"; paired over sites, no difference is shown ({p_words(paired.p)}, not corrected)"
    if paired.favours == FEDMAP:
        return f"; paired over sites, FedMAP is favoured ({p_words(paired.p)}, not corrected)"
    return f", and the pairs favour it as well ({p_words(paired.p)}, not corrected)"


def _why_absent(facts: Facts) -> str:
    if FEDMAP not in facts.description.methods:
        return "FedMAP is not part of this comparison."
    reasons = [reason for method, _, reason in facts.failures if method == FEDMAP]
    return f"FedMAP has no figure here{f' ({reasons[0]})' if reasons else ''}."


def _caveats(facts: Facts, statistics: Statistics) -> list[str]:
    described = facts.description
    at = Circumstances(
        methods=described.methods,
        trials=described.trials,
        seeds=len(described.seeds),
        sites={tier: len(facts.tier(tier)) for tier in (1, 2, 3)},
        failures=facts.failures,
        failed_fits=facts.failed_fits,
    )
    found = caveats(at, lambda method: shown(method).label)
    found += [text for tier in statistics.tiers if (text := _corrected_away(tier))]
    if described.excluded_sites:
        found.append(
            f"Left out because their data did not pass the checks: {joined(described.excluded_sites)}."
        )
    if ALONE not in described.methods:
        found.append("Training alone is not part of this comparison, so no gain over it can be given.")
    return found


def _corrected_away(tier: TierStatistics) -> str:
    """Where a win at every site would still not be told from chance, because so many methods are tested."""
    tested = [r for row in tier.methods if (r := row.against_fedmap) is not None and r.p_holm is not None]
    if not tested or any(result.can_tell for result in tested):
        return ""
    return (
        f"T{tier.tier} has {counted(tier.sites, 'site')} and {counted(len(tested), 'method')} to hold "
        f"against FedMAP: corrected for all of them, even a win at every site that is not tied has p of "
        f"{LEVEL} or more, so no test between methods can succeed."
    )


def _figure(row: MethodAtTier) -> str:
    return f"{shown(row.method).label} ({row.median if row.ranked is None else row.ranked:.3f})"


def _measure(metric: str) -> str:
    label = metric_label(metric)
    return label if label[:2].isupper() else label[0].lower() + label[1:]
