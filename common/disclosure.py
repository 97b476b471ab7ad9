"""What may be said about a site's rows: small cells are never sent, whatever a study asks for.

A count from 1 to floor−1 points at people. Zero does not, and neither does a count at the floor or above.
Shared by the site's exit gate and the simulator, so that both pool the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.algorithm.statistics import FeatureStatistics, feature_statistics


def is_small_cell(count: int, floor: int) -> bool:
    """Whether a count would point at people."""
    return 0 < count < floor


@dataclass(frozen=True)
class ReleasedStatistics:
    """Statistics fit to leave a site, and how many inputs were not sent as they are."""

    statistics: FeatureStatistics
    unscaled: int  # inputs whose mean and M2 nobody needs: sent as 0
    rare: int  # inputs in which fewer rows than the floor differ from all others: sent as if none did


def released_statistics(features: Tensor, scaled: tuple[bool, ...], floor: int) -> ReleasedStatistics:
    """n, mean and M2 of (rows, features) without small cells.

    Of an input that is 0 but for three patients, n · mean is what those three have in all. Such an input is
    sent as a constant: the scaler then leaves its spread to the sites where it is common.
    """
    exact = feature_statistics(features)
    use = torch.tensor(scaled)
    if len(features):
        usual = features.mode(0).values  # (features,) the most common value of each
        differing = (features != usual).sum(0)
    else:
        usual, differing = torch.zeros(features.shape[1]), torch.zeros(features.shape[1], dtype=torch.int64)
    rare = use & (differing > 0) & (differing < floor)
    mean = torch.where(rare, usual.double(), exact.mean)
    zero = torch.zeros((), dtype=torch.float64)
    return ReleasedStatistics(
        FeatureStatistics(exact.rows, torch.where(use, mean, zero), torch.where(use & ~rare, exact.m2, zero)),
        unscaled=int((~use).sum()),
        rare=int(rare.sum()),
    )
