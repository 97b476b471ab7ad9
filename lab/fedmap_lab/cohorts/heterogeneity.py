"""How different the sites of a cohort are, measured against what the published study reports.

The feature on which distances are taken is chosen by the data: the highest univariate AUROC, either way, over
all rows. Wasserstein distances are exact: with all sites' distribution functions on one common grid of
values, the distance of a pair is the area between two of them. Targets are targets, not identities: the
source's own totals disagree a little.

It prints nothing and keeps no value of any patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from fedmap.errors import FedmapError
from fedmap_lab.cohorts.site_plan import FloatArray, SiteTable


@dataclass(frozen=True)
class Spread:
    """A mean over sites or pairs of sites with its SD; without one, a plain count."""

    mean: float
    sd: float | None = None

    def __str__(self) -> str:
        if self.sd is None:
            return f"{self.mean:,.0f}"
        digits = 0 if self.mean >= 10 else 2
        return f"{self.mean:,.{digits}f} ± {self.sd:,.{digits}f}"


@dataclass(frozen=True)
class HeterogeneityTargets:
    """What the study reports; rows by tier, or by site where the study names its sites."""

    tier_sites: Mapping[int, int]
    tier_rows: Mapping[int, Spread]
    site_rows: Mapping[str, int]
    positive_share: Spread
    wasserstein: Spread
    regions: int


@dataclass(frozen=True)
class HeterogeneityRow:
    quantity: str
    target: Spread
    measured: Spread


@dataclass(frozen=True)
class Heterogeneity:
    """The table, and the feature on which the distances were taken."""

    feature: str
    rows: tuple[HeterogeneityRow, ...]


def measure_heterogeneity(tables: Sequence[SiteTable], targets: HeterogeneityTargets) -> Heterogeneity:
    """Sizes, outcome shares and distances between the sites of a cohort, each beside its target."""
    positive = np.concatenate([table.positive for table in tables])
    candidates = pd.concat([table.candidates for table in tables], ignore_index=True)
    site_of = np.repeat(np.arange(len(tables)), [len(table.positive) for table in tables])
    feature = most_predictive_feature(candidates, positive)
    values = candidates[feature].to_numpy(dtype=np.float64)
    distances = distances_between_sites((values - values.mean()) / values.std(), site_of)
    shares = np.array([table.positive.mean() for table in tables])

    def rows_of(tier: int) -> FloatArray:
        return np.array([len(t.positive) for t in tables if t.site.tier == tier], dtype=np.float64)

    by_name = {table.site.site: len(table.positive) for table in tables}
    rows = [
        *(
            HeterogeneityRow(f"T{k} sites", Spread(n), Spread(len(rows_of(k))))
            for k, n in targets.tier_sites.items()
        ),
        *(
            HeterogeneityRow(f"T{k} rows per site", n, _spread(rows_of(k)))
            for k, n in targets.tier_rows.items()
        ),
        *(
            HeterogeneityRow(f"rows of {k}", Spread(n), Spread(by_name[k]))
            for k, n in targets.site_rows.items()
        ),
        HeterogeneityRow("positive share per site", targets.positive_share, _spread(shares)),
        HeterogeneityRow("Wasserstein distance between sites", targets.wasserstein, _spread(distances)),
        HeterogeneityRow("regions", Spread(targets.regions), Spread(len({t.site.region for t in tables}))),
    ]
    return Heterogeneity(feature=feature, rows=tuple(rows))


def _spread(values: FloatArray) -> Spread:
    return Spread(float(values.mean()), float(values.std()))


def most_predictive_feature(candidates: pd.DataFrame, positive: NDArray[np.bool_]) -> str:
    """The column whose AUROC over all rows is farthest from one half."""
    if positive.all() or not positive.any():
        raise FedmapError(
            "the synthetic cohort has one outcome class only", hint="Use a larger scale or another seed."
        )
    strength = [abs(univariate_auroc(candidates[name].to_numpy(), positive) - 0.5) for name in candidates]
    return str(candidates.columns[int(np.argmax(strength))])


def univariate_auroc(values: NDArray[np.generic], positive: NDArray[np.bool_]) -> float:
    """Probability that a positive row has the larger value, ties counting half."""
    if values.dtype == np.uint8:  # thousands of count columns: no sorting
        place, size = values.astype(np.intp), 256
    else:
        grid, place = np.unique(values, return_inverse=True)
        size = len(grid)
    cases = np.bincount(place[positive], minlength=size).astype(np.float64)
    controls = np.bincount(place[~positive], minlength=size).astype(np.float64)
    below = np.cumsum(controls) - controls / 2
    return float(cases @ below / (cases.sum() * controls.sum()))


def distances_between_sites(values: FloatArray, site_of: NDArray[np.intp]) -> FloatArray:
    """1-D Wasserstein distance of every pair of sites: (pairs,)."""
    grid, place = np.unique(values, return_inverse=True)
    sites = int(site_of.max()) + 1
    counts = np.zeros((sites, len(grid)))
    np.add.at(counts, (site_of, place), 1.0)
    distribution = np.cumsum(counts, axis=1) / counts.sum(axis=1, keepdims=True)  # (sites, grid)
    areas = distribution[:, :-1] * np.diff(grid)
    return np.asarray(pdist(areas, metric="cityblock"), dtype=np.float64)
