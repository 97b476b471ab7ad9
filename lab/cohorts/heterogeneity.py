"""How different the sites of a cohort are, measured against what the published study reports.

Wasserstein distances are exact: with all sites' distribution functions on one common grid of values, the
distance of a pair is the area between two of them. Targets are targets, not identities: the source's own totals
disagree a little, and its 48 ± 53 rows of the smallest hospitals cannot hold below 100 rows.

It prints nothing and holds no value of any patient.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A mean over sites or pairs of sites with its SD, or a plain number (no SD)."""

    mean: float
    sd: float | None = None

    def __str__(self) -> str:
        digits = 0 if self.mean >= 10 else 2
        if self.sd is None:
            return f"{self.mean:,.0f}"
        return f"{self.mean:,.{digits}f} ± {self.sd:,.{digits}f}"


@dataclass(frozen=True)
class HeterogeneityTargets:
    """What the study reports. `sites` and `rows` are by tier, or by site where the study names its sites."""

    sites: tuple[tuple[int, int], ...]
    rows: tuple[tuple[str, Spread], ...]
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
