"""Histograms of all sites together, on few bins, and how far a usual site is from them.

Bins are cut from the fixed grid: two open ones beyond which the federation has almost nobody, and in between
bins with enough rows each for a stable index. What a site did not tell (joined cells, an input it sent as
constant) counts against the site's range at its worst: up to floor−1 rows may lie outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.shift.cells import EDGES, block_numbers, pooled_shares
from common.shift.terms import ReferenceTerms

_TAIL = 0.001  # share of rows in either open bin, at most
_LEAST_SHARE = 0.03  # of an inner bin
_SMALLEST = 1e-4  # share: where a bin is empty, so that the index stays finite


@dataclass(frozen=True)
class PooledHistogram:
    """Of one input; see `reference.InputReference`."""

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    outside: float
    instability: float


def stability_index(own: Tensor, reference: Tensor) -> Tensor:
    """Population stability index Σ (p − q) ln(p / q) over the last dimension."""
    p, q = own.clamp(min=_SMALLEST), reference.clamp(min=_SMALLEST)
    return ((p - q) * (p / q).log()).sum(-1)


def pool_histograms(ordered: Sequence[ReferenceTerms]) -> list[PooledHistogram]:
    """One per input."""
    shares = pooled_shares([terms.counts for terms in ordered])  # (inputs, CELLS)
    spread = [_spread_out(terms.counts, shares) for terms in ordered]
    pooled = []
    for j in range(len(shares)):
        kept = _cut(shares[j])
        bins = _merge(shares[j], kept)
        outside, indices = 0.0, []
        for terms, counts in zip(ordered, spread, strict=True):
            own, rows = _merge(counts[j], kept), float(terms.rows)
            beyond = float(own[0] + own[-1]) + _untold(terms, j, kept)
            outside = max(outside, min(beyond / rows, 1.0))
            chance = (int((bins > 0).sum()) - 1) / rows  # what sampling alone adds to the index
            indices.append(float(stability_index(own / rows, bins)) - chance)
        pooled.append(
            PooledHistogram(
                edges=tuple(EDGES[edge] for edge in kept),
                shares=tuple(bins.tolist()),
                outside=outside,
                instability=max(sum(indices) / len(indices), 0.0),
            )
        )
    return pooled


def _spread_out(counts: Tensor, shares: Tensor) -> Tensor:
    """A site's joined rows over their cells, in the pool's proportions: (inputs, cells)."""
    block = block_numbers(counts)
    empty = torch.zeros_like(shares)
    mass = empty.scatter_add(1, block, shares).gather(1, block)
    size = empty.scatter_add(1, block, torch.ones_like(shares)).gather(1, block)
    part = torch.where(mass > 0, shares / mass.clamp(min=torch.finfo(torch.float64).tiny), 1 / size)
    return counts.clamp(min=0).gather(1, block) * part


def _cut(shares: Tensor) -> list[int]:
    """Indices of the grid's edges to keep, at least two."""
    below, above = shares.cumsum(0), shares.flip(0).cumsum(0).flip(0)
    last_edge = len(EDGES) - 1
    first = max(int((below[:-1] <= _TAIL).sum()) - 1, 0)
    last = min(len(EDGES) - int((above[1:] <= _TAIL).sum()), last_edge)
    first, last = min(first, last_edge - 1), max(last, first + 1)
    kept, since = [first], 0.0
    for edge in range(first + 1, last):
        since += float(shares[edge])
        if since >= _LEAST_SHARE and float(shares[edge + 1 : last + 1].sum()) >= _LEAST_SHARE:
            kept.append(edge)
            since = 0.0
    return [*kept, last]


def _merge(cells: Tensor, kept: Sequence[int]) -> Tensor:
    """Sums of the cells between the kept edges: (cells,) → (edges + 1,)."""
    cuts = [0, *(edge + 1 for edge in kept), len(cells)]
    return torch.stack([cells[cuts[i] : cuts[i + 1]].sum() for i in range(len(cuts) - 1)])


def _untold(terms: ReferenceTerms, j: int, kept: Sequence[int]) -> float:
    """Rows that may lie in the open bins although the site's counts put them inside."""
    most = float(terms.floor) - 1
    if terms.m2[j] == 0:
        return most
    counts = terms.counts[j]
    low, high = counts[: kept[0] + 1], counts[kept[-1] + 1 :]
    return most * (bool((low < 0).any()) + bool((high < 0).any()))
