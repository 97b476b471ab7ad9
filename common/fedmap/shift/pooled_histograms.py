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

from fedmap.shift.told.cells import CELLS, EDGES, block_numbers, pooled_shares
from fedmap.shift.told.terms import ReferenceTerms

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


def stability_index(own: Tensor, reference: Tensor, rows: float) -> Tensor:
    """Population stability index Σ (p − q) ln(p / q) over the last dimension.

    Half a row per bin is added to the site's, spread as the reference's: an empty bin among few rows is no
    news, and without it the logarithm would make it some.
    """
    added = 0.5 * (reference > 0).sum(-1, keepdim=True)
    p = ((own * rows + reference * added) / (rows + added)).clamp(min=_SMALLEST)
    q = reference.clamp(min=_SMALLEST)
    return ((p - q) * (p / q).log()).sum(-1)


def pool_histograms(ordered: Sequence[ReferenceTerms]) -> list[PooledHistogram]:
    """One per input."""
    cells = pooled_shares([terms.counts for terms in ordered])  # (inputs, CELLS)
    kept = [_cut(own) for own in cells.tolist()]
    bin_of = _bin_numbers(kept)  # (inputs, CELLS)
    last = bin_of[:, -1:]
    bins = _merge(cells, bin_of)  # (inputs, most bins)
    used = (bins > 0).sum(1)
    outside, index = (
        torch.zeros(len(cells), dtype=torch.float64),
        torch.zeros(len(cells), dtype=torch.float64),
    )
    for terms in ordered:
        rows = float(terms.rows)
        own = _merge(_spread_out(terms.counts, cells), bin_of)
        beyond = own[:, 0] + own.gather(1, last)[:, 0] + _untold(terms, bin_of, last)
        outside = torch.maximum(outside, (beyond / rows).clamp(max=1))
        index += stability_index(own / rows, bins, rows) - (used - 1) / rows  # less what sampling alone adds
    index = (index / len(ordered)).clamp(min=0)
    return [
        PooledHistogram(
            edges=tuple(EDGES[edge] for edge in edges),
            shares=tuple(bins[j, : len(edges) + 1].tolist()),
            outside=float(outside[j]),
            instability=float(index[j]),
        )
        for j, edges in enumerate(kept)
    ]


def _spread_out(counts: Tensor, shares: Tensor) -> Tensor:
    """A site's joined rows over their cells, in the pool's proportions: (inputs, cells)."""
    block = block_numbers(counts)
    empty = torch.zeros_like(shares)
    mass = empty.scatter_add(1, block, shares).gather(1, block)
    size = empty.scatter_add(1, block, torch.ones_like(shares)).gather(1, block)
    part = torch.where(mass > 0, shares / mass.clamp(min=torch.finfo(torch.float64).tiny), 1 / size)
    return counts.clamp(min=0).gather(1, block) * part


def _cut(shares: Sequence[float]) -> list[int]:
    """Indices of the grid's edges to keep, at least two. Edge e is between the cells e and e + 1."""
    last_edge = len(EDGES) - 1
    first, below = 0, shares[0]
    while first < last_edge - 1 and below + shares[first + 1] <= _TAIL:
        first += 1
        below += shares[first]
    last, above = last_edge, shares[-1]
    while last > first + 1 and above + shares[last] <= _TAIL:
        above += shares[last]
        last -= 1
    kept, since, rest = [first], 0.0, sum(shares[first + 1 : last + 1])
    for edge in range(first + 1, last):
        since += shares[edge]
        rest -= shares[edge]
        if since >= _LEAST_SHARE and rest >= _LEAST_SHARE:
            kept.append(edge)
            since = 0.0
    return [*kept, last]


def _bin_numbers(kept: Sequence[Sequence[int]]) -> Tensor:
    """The bin that each cell of the grid falls into: (inputs, CELLS)."""
    starts = torch.zeros(len(kept), CELLS, dtype=torch.int64)
    for row, edges in zip(starts, kept, strict=True):
        row[[edge + 1 for edge in edges]] = 1
    return starts.cumsum(1)


def _merge(cells: Tensor, bin_of: Tensor) -> Tensor:
    """Sums of cells by bin: (inputs, most bins)."""
    return torch.zeros(len(cells), int(bin_of.max()) + 1, dtype=torch.float64).scatter_add(1, bin_of, cells)


def _untold(terms: ReferenceTerms, bin_of: Tensor, last: Tensor) -> Tensor:
    """Rows that may lie in the open bins although the site's counts put them inside: (inputs,)."""
    joined = terms.counts < 0
    low, high = (joined & (bin_of == 0)).any(1), (joined & (bin_of == last)).any(1)
    sides = torch.where(terms.m2 == 0, 1.0, low.double() + high.double())
    return (terms.floor - 1) * sides
