"""What may be said about a site's rows: small cells are never sent, whatever a study asks for.

A count from 1 to floor−1 points at people. Zero does not, and neither does a count at the floor or above.
Shared by the site's exit gate and the simulator, so that both pool the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.pooling.statistics import FeatureStatistics, feature_statistics
from fedmap.outcomes import OutcomeKind


def is_small_cell(count: int, floor: int) -> bool:
    """Whether a count would point at people."""
    return 0 < count < floor


def rounded_count(count: int, floor: int) -> int | None:
    """The nearest multiple of the floor; None for a small cell.

    For counts that stand beside others of the same rows: the difference of two of them then says nothing.
    """
    return None if is_small_cell(count, floor) else (2 * count + floor) // (2 * floor) * floor


@dataclass(frozen=True)
class PartCounts:
    """Rows of one part, and the cells in it that a score could give away."""

    rows: int
    cells: tuple[int, ...]  # rows by class, or events

    def is_small(self, floor: int) -> bool:
        return self.rows < floor or any(is_small_cell(cell, floor) for cell in self.cells)


def part_counts(kind: OutcomeKind, part: Examples) -> PartCounts:
    """Small when its rows, or the rows of one class, or its events, are fewer than the floor and not none."""
    if kind == "cox":
        return PartCounts(len(part), (0 if part.event is None else int(part.event.sum()),))
    return PartCounts(len(part), tuple(int(n) for n in np.bincount(part.target.numpy())))


def events(kind: OutcomeKind, *parts: Examples) -> int | None:
    """Events (survival) or positive rows (binary) in some parts; a multiclass task has no such count."""
    if kind == "multiclass":
        return None
    if kind == "cox":
        return sum(int(part.event.sum()) for part in parts if part.event is not None)
    return sum(int((part.target == 1).sum()) for part in parts)


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
