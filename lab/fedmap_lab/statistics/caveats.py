"""What a reader of a comparison has to know, in sentences: the same at the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedmap_lab.statistics.paired import FEWEST_SITES
from fedmap_lab.wording import counted, joined

_UNLIKE = {"ditto": "trains two models in it", "pfedme": "takes several gradients on each batch"}
_WORDS = {"undefined": "Not run", "diverged": "Diverged in at least one seed", "crashed": "Not finished"}
_NAMED = 6


@dataclass(frozen=True)
class Circumstances:
    """How methods were compared, and what went wrong."""

    methods: Sequence[str]
    trials: int  # 0: nothing was tuned
    seeds: int
    sites: Mapping[int, int]  # by tier
    failures: Sequence[tuple[str, str, str]]  # method, kind, reason
    failed_fits: Sequence[tuple[str, str]]  # method, site


def caveats(at: Circumstances, label: Callable[[str], str]) -> list[str]:
    """`label` is how a method is called."""
    unlike = [f"{label(name)} {words}" for name, words in _UNLIKE.items() if name in at.methods]
    found = [
        "All methods had the same splits, first models and budget of rounds and epochs"
        + (f"; {joined(unlike)}." if unlike else "."),
        f"Settings were tuned on validation rows with {at.trials} trials a method; the same rows stop "
        "training early."
        if at.trials
        else "Nothing was tuned: a method whose defaults do not suit this study looks worse than it is.",
    ]
    if at.seeds == 1:
        found.append("One seed: differences may be chance of training.")
    found += [
        f"T{tier} has {counted(count)}: no test between methods is possible with fewer than {FEWEST_SITES}."
        for tier, count in sorted(at.sites.items())
        if 0 < count < FEWEST_SITES
    ]
    return [*found, *_failures(at, label), *_failed_fits(at, label)]


def _failures(at: Circumstances, label: Callable[[str], str]) -> list[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for method, kind, reason in at.failures:
        by_reason.setdefault((kind, reason), []).append(label(method))
    return [
        f"{_WORDS.get(kind, kind)}: {', '.join(dict.fromkeys(names))} ({reason})."
        for (kind, reason), names in by_reason.items()
    ]


def _failed_fits(at: Circumstances, label: Callable[[str], str]) -> list[str]:
    """A site whose fit failed in a round did not take part in it: its figure may be of an older model."""
    pairs = [f"{label(method)} at {site}" for method, site in dict.fromkeys(at.failed_fits)]
    if not pairs:
        return []
    named = pairs[:_NAMED]
    if len(pairs) > _NAMED:
        named.append(f"{len(pairs) - _NAMED} more")
    return [
        f"Fits of single sites failed in at least one round for {counted(len(pairs), 'pair')} of method and "
        f"site: {joined(named)} (see failures.csv)."
    ]
