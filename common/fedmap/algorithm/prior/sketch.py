"""A fixed, seeded linear map that shortens long parameter tensors before the convex network sees them.

Each number of a tensor gets a random sign, and the signed numbers are folded into k sums: number i goes to
sum i mod k. Random signs make inner products right on average, as in a count sketch, and folding costs one
pass over θ where a dense random matrix would cost as much as the layer it is meant to save. Convexity
survives any linear map. Signs come from the seed at each end; the map never travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from fedmap.algorithm.seeding import torch_stream


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
        flat = parts[0].new_zeros(*parts[0].shape[:-1], sum(self.sizes))
        self.add_transpose(parts, flat)
        return flat

    def add_transpose(self, parts: tuple[Tensor, ...], total: Tensor) -> None:
        """Add the adjoint of `parts` to `total` (..., d)."""
        into = torch.split(total, list(self.sizes), dim=-1)
        if not self.width:
            for part, out in zip(parts, into, strict=True):
                out.add_(part)
            return
        signs = torch.split(self._signs.to(total.dtype), list(self.sizes))
        for part, out, sign in zip(parts, into, signs, strict=True):
            if out.shape[-1] <= self.width:
                out.add_(part)
                continue
            whole = out.shape[-1] // self.width * self.width
            folds = out[..., :whole].view(*part.shape[:-1], -1, self.width)
            folds.addcmul_(part.unsqueeze(-2), sign[:whole].view(-1, self.width))
            rest = out[..., whole:]
            rest.addcmul_(part[..., : rest.shape[-1]], sign[whole:])

    def _fold(self, signed: Tensor) -> Tensor:
        """The sum over folds; the last fold may be short."""
        whole = signed.shape[-1] // self.width * self.width
        folded = signed[..., :whole].view(*signed.shape[:-1], -1, self.width).sum(-2)
        folded[..., : signed.shape[-1] - whole].add_(signed[..., whole:])
        return folded


# A sketch is made anew for every fit, and its signs are the same each time: keep the last few.
@lru_cache(maxsize=4)
def _signs_of(sizes: tuple[int, ...], width: int, seed: int) -> Tensor:
    """±1 for every number that is folded, 1 for those of short tensors, (d,)."""
    bits = torch.randint(0, 2, (sum(sizes),), generator=torch_stream(seed))
    signs = bits.to(torch.float32).mul_(2).sub_(1)
    for size, part in zip(sizes, torch.split(signs, list(sizes)), strict=True):
        if size <= width:
            part.fill_(1.0)
    return signs
