"""Two methods at the same sites: how far apart they are, how sure that is, and for how many sites it holds.

Sites are the units: patients of one site share its data, its staff and its model, so they are no independent
evidence about methods. A site counts once, with its mean over seeds, and only where both have a value. With
fewer than six sites even a win at every one of them has p above 0.05: no test and no interval is given. With
a few more, ties and the correction for many methods take away what a test could find: `least_p_holm` tells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, wilcoxon

from fedmap.metrics import METRICS
from fedmap_lab.wording import counted

FEWEST_SITES = 6  # 2 / 2⁶ = 0.031: the smallest number of pairs that can be told from chance at 5 %
LEVEL = 0.05  # below, a difference is called more than chance
DRAWS = 10_000
_BLOCK = 1_000  # draws at a time: a table of draws × sites has to fit


@dataclass(frozen=True)
class PairedResult:
    """A method against a reference at the sites of one tier. A gain above zero: the method is better."""

    metric: str
    method: str
    reference: str
    sites: int
    method_median: float
    reference_median: float
    median_gain: float
    low: float | None = None  # 95 % bootstrap interval of the median gain, over sites
    high: float | None = None
    improved: float = 0.0  # share of sites with a gain above zero
    p: float | None = None  # Wilcoxon signed-rank, two-sided
    favours: str = ""  # the method or the reference, by the sum of signed ranks; neither where that is zero
    p_holm: float | None = None  # corrected for the methods that can win
    least_p_holm: float | None = None  # the smallest that so few untied sites and so many methods allow
    untied: int = 0  # sites at which the two differ: a test looks at these alone
    note: str = ""

    @property
    def can_tell(self) -> bool:
        """Whether a win at every site that is not tied would have a corrected p below the level."""
        return self.least_p_holm is not None and self.least_p_holm < LEVEL


def gain(metric: str, value: float, reference: float) -> float:
    """How much better a value is; for figures with a target, how much nearer to it."""
    ideal = METRICS[metric].ideal
    # Rounded where floating point ends, so that equal gains are ties to a rank test.
    return round(abs(reference - ideal) - abs(value - ideal), 12)


def gains(
    metric: str, values: Mapping[str, float], reference: Mapping[str, float]
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Sites that both have, in order of name, and the gain at each."""
    sites = tuple(sorted(values.keys() & reference.keys()))
    return sites, np.array([gain(metric, values[site], reference[site]) for site in sites])


def compare_pair(
    metric: str,
    method: str,
    reference: str,
    values: Mapping[str, float],
    reference_values: Mapping[str, float],
    seed: int = 0,
) -> PairedResult | None:
    """One method against the reference; None where they share no site."""
    sites, differences = gains(metric, values, reference_values)
    if not sites:
        return None
    result = PairedResult(
        metric=metric,
        method=method,
        reference=reference,
        sites=len(sites),
        method_median=float(np.median([values[site] for site in sites])),
        reference_median=float(np.median([reference_values[site] for site in sites])),
        median_gain=float(np.median(differences)),
        improved=float(np.mean(differences > 0)),
        untied=int(np.count_nonzero(differences)),
    )
    if len(sites) < FEWEST_SITES:
        return replace(
            result, note=f"{counted(len(sites))}: no test is possible with fewer than {FEWEST_SITES}"
        )
    low, high = median_interval(differences, seed)
    if not np.any(differences):
        return replace(result, low=low, high=high, p=1.0, note="the same at every site")
    p = float(wilcoxon(differences, method="auto").pvalue)
    return replace(result, low=low, high=high, p=p, favours=_favoured(result, differences))


def _favoured(result: PairedResult, differences: NDArray[np.float64]) -> str:
    """The side that the test leans to. The median gain does not tell: it is zero where half the sites tie."""
    apart = differences[differences != 0]
    total = float(np.sum(np.sign(apart) * rankdata(np.abs(apart))))
    return result.method if total > 0 else result.reference if total < 0 else ""


def compare_all(
    metric: str,
    reference: str,
    by_method: Mapping[str, Mapping[str, float]],
    seed: int = 0,
    corrected: Collection[str] | None = None,
) -> tuple[PairedResult, ...]:
    """Every method against the reference. Holm's correction is for those of `corrected` (None: all) together;
    the others keep their p as it is."""
    found = [
        compare_pair(metric, method, reference, values, by_method[reference], seed)
        for method, values in by_method.items()
        if method != reference
    ]
    results = [result for result in found if result is not None]
    tested = [
        index
        for index, result in enumerate(results)
        if result.p is not None and (corrected is None or result.method in corrected)
    ]
    found_p = holm([results[index].p or 0.0 for index in tested])
    least_p = holm([min(1.0, 2.0 / 2 ** results[index].untied) for index in tested])
    for index, p, least in zip(tested, found_p, least_p, strict=True):
        results[index] = replace(results[index], p_holm=p, least_p_holm=least)
    return tuple(results)


def median_interval(differences: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median, sites drawn with replacement."""
    generator = np.random.default_rng(seed)
    medians = np.concatenate(
        [
            np.median(
                differences[generator.integers(0, differences.size, (_BLOCK, differences.size))], axis=1
            )
            for _ in range(DRAWS // _BLOCK)
        ]
    )
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down correction (Scandinavian Journal of Statistics, 1979), in the order given."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return tuple(corrected)
