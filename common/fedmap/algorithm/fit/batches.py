"""Mini-batches for many sites at once: packing, shuffling, dropout masks. All randomness of a fit is here.

An epoch of a site with n rows is one *first* batch that takes the remainder, then full batches. With the
odd-sized batch first, every later batch is full at every site that still has one, so only the first needs
padding. A remainder of a single row sits that epoch out (another row every time): one row has no variance
for batch-norm to divide by, and no comparison for a Cox loss.

Dropout draws, for every row and layer, one of MASKS fixed masks: a few thousand random subsets of units
serve as well as fresh ones, and picking one costs a small part of drawing it unit by unit.

Streams are per site (`seeding`), so a site's batches do not depend on who is packed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.model.layers import Dropout
from fedmap.algorithm.model.likelihood import LikelihoodName, Outcome, risk_sets
from fedmap.algorithm.seeding import derive_seed, numpy_stream

MASKS = 4096


@dataclass(frozen=True)
class PackedRows:
    """One part of S sites, padded to the longest; survival rows sorted by falling time."""

    features: Tensor  # (S, N, p) float32
    rows: NDArray[np.int64]  # (S,) true rows
    label: Tensor | None  # (S, N) int64
    time: NDArray[np.float64] | None  # (S, N)
    event: NDArray[np.bool_] | None  # (S, N)

    def select(self, keep: NDArray[np.int64]) -> PackedRows:
        at = torch.from_numpy(keep)
        return PackedRows(
            features=self.features[at],
            rows=self.rows[keep],
            label=None if self.label is None else self.label[at],
            time=None if self.time is None else self.time[keep],
            event=None if self.event is None else self.event[keep],
        )

    def outcome(self) -> Outcome:
        """The outcomes of all rows, as one batch per site."""
        width = self.features.shape[1]
        weight = torch.from_numpy((np.arange(width) < self.rows[:, None]).astype(np.float32))
        if self.time is None or self.event is None:
            return Outcome(weight, label=self.label)
        return Outcome(weight, risk=risk_sets(self.time, self.event, self.rows))


@dataclass(frozen=True)
class Batch:
    """One step's rows at the first `sites` of the packed sites."""

    sites: int
    features: Tensor  # (sites, B, p)
    outcome: Outcome
    rows: Tensor  # (sites,) float32 true rows
    padded: bool
    keep: tuple[Tensor, ...]  # dropout masks over the keep probability, one per acting layer


def pack(parts: Sequence[Examples], likelihood: LikelihoodName) -> PackedRows:
    """Pad S sites' rows into common tensors. Survival rows are sorted once, here."""
    rows = np.array([len(part) for part in parts], dtype=np.int64)
    width = int(rows.max())
    features = torch.zeros(len(parts), width, parts[0].features.shape[1])
    survival = likelihood == "cox"
    label = None if survival else torch.zeros(len(parts), width, dtype=torch.int64)
    time = np.zeros((len(parts), width)) if survival else None
    event = np.zeros((len(parts), width), dtype=bool) if survival else None
    for site, part in enumerate(parts):
        if label is not None:
            features[site, : len(part)] = part.features
            label[site, : len(part)] = part.target
            continue
        assert time is not None
        assert event is not None
        assert part.event is not None
        order = np.argsort(-part.target.numpy(), kind="stable")
        features[site, : len(part)] = part.features[torch.from_numpy(order)]
        time[site, : len(part)] = part.target.numpy()[order]
        event[site, : len(part)] = part.event.numpy()[order]
    return PackedRows(features, rows, label, time, event)


def first_batch_rows(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Rows of the odd-sized first batch: the remainder, or a full batch where it would be 0 or 1 rows."""
    remainder = rows % batch_size
    return np.where(rows < batch_size, rows, np.where(remainder >= 2, remainder, batch_size))


def full_batches(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Full batches after the first. Sites are packed with this falling, so active sites are a prefix."""
    return (rows - first_batch_rows(rows, batch_size)) // batch_size


class BatchStream:
    """Draws the epochs of S packed sites. Sites must come with `full_batches` not increasing."""

    def __init__(
        self,
        data: PackedRows,
        seeds: Sequence[int],
        batch_size: int,
        dropouts: tuple[Dropout, ...],
    ) -> None:
        self._data = data
        self._batch_size = batch_size
        self._tables = [
            mask_table(layer.rate, layer.width, position) for position, layer in enumerate(dropouts)
        ]
        self._order = [numpy_stream(derive_seed(seed, "order")) for seed in seeds]
        self._noise = [numpy_stream(derive_seed(seed, "dropout")) for seed in seeds]
        self._full = full_batches(data.rows, batch_size)
        assert bool((np.diff(self._full) <= 0).all()), "sites must be packed by falling number of batches"

    def select(self, keep: NDArray[np.int64], data: PackedRows) -> None:
        """Go on with some of the sites; the others have stopped early."""
        self._data = data
        self._order = [self._order[site] for site in keep]
        self._noise = [self._noise[site] for site in keep]
        self._full = self._full[keep]

    def epoch(self) -> Iterator[Batch]:
        first = first_batch_rows(self._data.rows, self._batch_size)
        opening = np.zeros((len(first), int(first.max())), dtype=np.int64)
        later = np.zeros((int(self._full[0]), len(first), self._batch_size), dtype=np.int64)
        for site, stream in enumerate(self._order):
            order = stream.permutation(int(self._data.rows[site]))
            opening[site, : first[site]] = np.sort(order[: first[site]])
            rest = order[first[site] : first[site] + self._full[site] * self._batch_size]
            # Sorted positions keep survival batches sorted by falling time; the order within is immaterial.
            later[: self._full[site], site] = np.sort(rest.reshape(-1, self._batch_size), axis=1)
        yield self._batch(opening, first)
        for step in range(len(later)):
            sites = int((self._full > step).sum())
            yield self._batch(later[step, :sites], np.full(sites, self._batch_size))

    def _batch(self, index: NDArray[np.int64], rows: NDArray[np.int64]) -> Batch:
        sites, width = index.shape
        padded = bool((rows < width).any())
        data = self._data
        first_row = np.arange(sites)[:, None] * data.features.shape[1]
        flat = torch.from_numpy((index + first_row).ravel())  # rows in the packed tensors, laid end to end
        weight = torch.from_numpy((np.arange(width) < rows[:, None]).astype(np.float32))
        if data.time is None or data.event is None:
            assert data.label is not None
            outcome = Outcome(weight, label=data.label.flatten()[flat].view(sites, width))
        else:
            time = np.take_along_axis(data.time[:sites], index, axis=1)
            event = np.take_along_axis(data.event[:sites], index, axis=1)
            outcome = Outcome(weight, risk=risk_sets(time, event, rows))
        return Batch(
            sites=sites,
            features=data.features.flatten(0, 1).index_select(0, flat).view(sites, width, -1),
            outcome=outcome,
            rows=torch.from_numpy(rows.astype(np.float32)),
            padded=padded,
            keep=self._dropout_masks(rows, width),
        )

    def _dropout_masks(self, rows: NDArray[np.int64], width: int) -> tuple[Tensor, ...]:
        """For every row and layer a mask drawn from the layer's table; padding rows get the first one."""
        if not self._tables:
            return ()
        chosen = np.zeros((len(self._tables), len(rows), width), dtype=np.int64)
        for site, count in enumerate(rows.tolist()):
            # Raw 64-bit words cut into four: a bounded draw costs ten times as much and MASKS is 2¹².
            words = self._noise[site].bit_generator.random_raw(-(-len(self._tables) * count // 4))
            drawn = words.view(np.uint16)[: len(self._tables) * count] % MASKS
            chosen[:, site, :count] = drawn.reshape(len(self._tables), count)
        picks = torch.from_numpy(chosen)
        return tuple(
            table.index_select(0, pick.flatten()).view(len(rows), width, -1)
            for table, pick in zip(self._tables, picks.unbind(0), strict=True)
        )


@lru_cache(maxsize=64)
def mask_table(rate: float, width: int, position: int) -> Tensor:
    """MASKS independent dropout masks of one layer, (MASKS, width), already divided by the keep rate."""
    uniform = numpy_stream(derive_seed(0, "dropout-table", position)).random((MASKS, width))
    rank = uniform.argsort(axis=0).argsort(axis=0)  # every unit is dropped in the same share of the masks
    dropped = round(rate * MASKS)
    return torch.from_numpy(np.where(rank < dropped, 0.0, MASKS / (MASKS - dropped)).astype(np.float32))
