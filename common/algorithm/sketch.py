"""A fixed, seeded linear map that shortens long parameter tensors before the convex network sees them.

Each number of a tensor gets a random sign, and the signed numbers are folded into k sums: number i goes to
sum i mod k. Random signs make inner products right on average, as in a count sketch, and folding costs one
pass over θ where a dense random matrix would cost as much as the layer it is meant to save. Convexity
survives any linear map. Signs come from the seed at each end; the map never travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from common.algorithm.seeding import torch_stream


@dataclass(frozen=True)
class Sketch:
    """Maps a flat vector of tensors with `sizes` to one part per tensor, none longer than `width`."""

    sizes: tuple[int, ...]
    width: int  # 0: no sketch
    seed: int

    @cached_property
    def widths(self) -> tuple[int, ...]:
        return tuple(min(size, self.width) if self.width else size for size in self.sizes)

    @property
    def _signs(self) -> Tensor:
        return _signs_of(self.sizes, self.width, self.seed)

    def apply(self, flat: Tensor) -> tuple[Tensor, ...]:
        """(..., d) → one (..., width_t) per tensor."""
        if not self.width:
            return torch.split(flat, list(self.sizes), dim=-1)
        parts = torch.split(flat * self._signs.to(flat.dtype), list(self.sizes), dim=-1)
        return tuple(
            part if size <= self.width else self._fold(part)
            for part, size in zip(parts, self.sizes, strict=True)
        )

    def transpose(self, parts: tuple[Tensor, ...]) -> Tensor:
        """The adjoint: gradients of the parts (..., width_t) → gradient of the flat vector (..., d)."""
        joined = torch.cat(parts, dim=-1)
        if not self.width:
            return joined
        return joined.index_select(-1, self._sums).mul_(self._signs.to(joined.dtype))

    @property
    def _sums(self) -> Tensor:
        return _sums_of(self.sizes, self.widths)

    def _fold(self, signed: Tensor) -> Tensor:
        """The sum over folds; the last fold may be short."""
        whole = signed.shape[-1] // self.width * self.width
        folded = signed[..., :whole].view(*signed.shape[:-1], -1, self.width).sum(-2)
        folded[..., : signed.shape[-1] - whole].add_(signed[..., whole:])
        return folded


# A sketch is made anew for every fit, and its signs and places are the same each time: keep the last few.
@lru_cache(maxsize=4)
def _signs_of(sizes: tuple[int, ...], width: int, seed: int) -> Tensor:
    """±1 for every number that is folded, 1 for those of short tensors, (d,)."""
    bits = torch.randint(0, 2, (sum(sizes),), generator=torch_stream(seed))
    signs = bits.to(torch.float32).mul_(2).sub_(1)
    for size, part in zip(sizes, torch.split(signs, list(sizes)), strict=True):
        if size <= width:
            part.fill_(1.0)
    return signs


@lru_cache(maxsize=4)
def _sums_of(sizes: tuple[int, ...], widths: tuple[int, ...]) -> Tensor:
    """Where in the joined parts each number of the flat vector was added, (d,)."""
    starts = [0, *accumulate(widths)][:-1]
    return torch.cat(
        [start + torch.arange(size) % width for start, size, width in zip(starts, sizes, widths, strict=True)]
    )
