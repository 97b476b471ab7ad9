"""Pooled feature statistics: sites send n, mean and M2 per feature, the centre makes one scaler for all.

M2 is the sum of squared deviations from the mean. Merging uses Chan's update in float64, sites in sorted
order, so the pooled scaler equals that of the pooled rows without any row leaving its site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.errors import TrainingError


@dataclass(frozen=True)
class FeatureStatistics:
    """n, mean and M2 of each feature over one site's training rows, or pooled."""

    rows: int
    mean: Tensor  # (features,) float64
    m2: Tensor  # (features,) float64


@dataclass(frozen=True)
class Scaler:
    """x ↦ (x − mean) / deviation; a feature that is not scaled has mean 0 and deviation 1."""

    mean: Tensor  # (features,) float32
    deviation: Tensor  # (features,) float32

    def apply(self, features: Tensor) -> Tensor:
        return (features - self.mean).div_(self.deviation)


def feature_statistics(features: Tensor) -> FeatureStatistics:
    """Statistics of (rows, features)."""
    exact = features.double()
    mean = exact.mean(0) if len(exact) else torch.zeros(exact.shape[1], dtype=torch.float64)
    return FeatureStatistics(len(exact), mean, (exact - mean).square().sum(0))


def pool_statistics(by_site: Mapping[str, FeatureStatistics]) -> FeatureStatistics:
    """Statistics of all sites' rows together."""
    if not by_site:
        raise TrainingError(
            "no site sent feature statistics", hint="wait for the quorum of sites before pooling statistics"
        )
    ordered = [by_site[site] for site in sorted(by_site)]
    pooled = ordered[0]
    for other in ordered[1:]:
        rows = pooled.rows + other.rows
        if rows == 0:
            continue
        shift = other.mean - pooled.mean
        mean = pooled.mean + shift * (other.rows / rows)
        m2 = pooled.m2 + other.m2 + shift.square() * (pooled.rows * other.rows / rows)
        pooled = FeatureStatistics(rows, mean, m2)
    return pooled


def make_scaler(statistics: FeatureStatistics, scaled: tuple[bool, ...]) -> Scaler:
    """Standardise the features flagged in `scaled`; a constant feature keeps deviation 1."""
    if statistics.rows < 2:
        raise TrainingError(
            f"{statistics.rows} row(s) are too few to scale features",
            hint="check that the sites' training parts are not empty",
        )
    use = torch.tensor(scaled)
    deviation = (statistics.m2 / (statistics.rows - 1)).sqrt()
    # Below the normal float32 it would become 0, or make every other value of the feature infinite.
    deviation = torch.where(use & (deviation >= torch.finfo(torch.float32).tiny), deviation, 1.0)
    mean = torch.where(use, statistics.mean, 0.0)
    return Scaler(mean.float(), deviation.float())
