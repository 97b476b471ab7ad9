"""Histograms on one fixed grid that needs no agreement between sites, with small cells joined.

The grid is in the model's units: fine near the federation's mean, coarse far out, and wide enough that a
value in a wrong unit has a cell of its own. A cell with 1 to floor−1 rows is joined with its neighbour
towards the middle until the two have enough; an empty cell points at nobody and stays. Which cells were
joined is kept, so that pooling can tell "no rows" from "not told", and does not invent rows in a tail.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_FINE = [step / 4 for step in range(-16, 17)]  # -4 to 4
_COARSE = [5.0, 6.0, 8.0, 12.0, 24.0, 100.0, 1000.0]
EDGES: tuple[float, ...] = (*(-edge for edge in reversed(_COARSE)), *_FINE, *_COARSE)
CELLS = len(EDGES) + 1
UP, DOWN = -1.0, -2.0
"""In place of a count: these rows are counted in the next cell up, or in the next one down."""

_ROUNDS = 60  # of expectation and maximisation; shares move by less than 1e-6 long before


def histogram(features: Tensor, edges: Tensor) -> Tensor:
    """Rows per cell: (rows, inputs) and rising inner edges (inputs, cells − 1) → (inputs, cells)."""
    inputs, cells = edges.shape[0], edges.shape[1] + 1
    values = features.double().T.contiguous()  # (inputs, rows)
    place = torch.searchsorted(edges, values, right=True)
    place += torch.arange(inputs).unsqueeze(1) * cells
    return torch.bincount(place.flatten(), minlength=inputs * cells).view(inputs, cells).double()


def grid(inputs: int) -> Tensor:
    """The fixed grid for each input: (inputs, CELLS − 1)."""
    return torch.tensor(EDGES, dtype=torch.float64).expand(inputs, -1).contiguous()


def join_small_cells(counts: Tensor, floor: int) -> Tensor:
    """(inputs, cells) without a count from 1 to floor−1; joined cells hold `UP` or `DOWN`."""
    joined = counts.clone()
    for row in range(len(joined)):
        own = joined[row].tolist()
        if any(0 < count < floor for count in own):
            joined[row] = torch.tensor(_join(own, floor), dtype=joined.dtype)
    return joined


def _join(counts: Sequence[float], floor: int) -> list[float]:
    """From either end towards the largest cell, which takes what never became enough."""
    cells = list(counts)
    middle = max(range(len(cells)), key=cells.__getitem__)
    for walk, mark in ((range(middle), UP), (range(len(cells) - 1, middle, -1), DOWN)):
        for cell in walk:
            if 0 < cells[cell] < floor:
                cells[cell + walk.step] += cells[cell]
                cells[cell] = mark
    while 0 < cells[middle] < floor:  # every cell is small: the nearest block joins, then the next
        _take_nearest(cells, middle)
    return cells


def _take_nearest(cells: list[float], middle: int) -> None:
    told = [cell for cell, count in enumerate(cells) if count > 0 and cell != middle]
    if not told:
        cells[middle] = 0.0  # fewer rows than the floor in all
        return
    nearest = min(told, key=lambda cell: (abs(cell - middle), cell))
    between = range(min(nearest, middle), max(nearest, middle) + 1)
    cells[middle] += cells[nearest]
    for cell in between:
        if cell != middle:
            cells[cell] = UP if cell < middle else DOWN


def block_numbers(counts: Tensor) -> Tensor:
    """Which cells are told together: for each cell the one that holds its count, (inputs, cells) int64."""
    inputs, cells = counts.shape
    at = torch.arange(cells).expand(inputs, -1)
    told = counts >= 0
    above = torch.where(told, at, cells - 1).flip(1).cummin(1).values.flip(1)
    below = torch.where(told, at, 0).cummax(1).values
    return torch.where(counts == UP, above, torch.where(counts == DOWN, below, at))


def pooled_shares(by_site: Sequence[Tensor]) -> Tensor:
    """Share of all rows in each cell, (inputs, cells), from the sites' joined counts.

    Expectation and maximisation: a block's rows are spread over its cells as the sites that told those cells
    apart have them. A cell that every site joined away ends empty.
    """
    inputs, cells = by_site[0].shape
    blocks = [block_numbers(counts) for counts in by_site]
    totals = [counts.clamp(min=0) for counts in by_site]
    told = torch.stack(totals).sum(0)
    rows = told.sum(1, keepdim=True).clamp(min=1)
    shares = (told + 1e-9) / (told + 1e-9).sum(1, keepdim=True)
    for _ in range(_ROUNDS):
        expected = torch.zeros(inputs, cells, dtype=torch.float64)
        for block, counts in zip(blocks, totals, strict=True):
            mass = torch.zeros_like(expected).scatter_add_(1, block, shares).gather(1, block)
            expected += torch.where(mass > 0, counts.gather(1, block) * shares / mass, 0.0)
        new = expected / rows
        moved = float((new - shares).abs().max())
        shares = new
        if moved < 1e-7:
            break
    return shares
