"""A fixed, seeded linear map that shortens long parameter tensors before the convex network sees them.

Each number of a tensor gets a random sign, and the signed numbers are folded into k sums: number i goes to
sum i mod k. Random signs make inner products right on average, as in a count sketch, and folding costs one
pass over θ where a dense random matrix would cost as much as the layer it is meant to save. Convexity
survives any linear map. Signs come from the seed at each end; the map never travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
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

    @cached_property
    def _signs(self) -> Tensor:
        bits = torch.randint(0, 2, (sum(self.sizes),), generator=torch_stream(self.seed))
        return bits.to(torch.float32).mul_(2).sub_(1)

    def apply(self, flat: Tensor) -> tuple[Tensor, ...]:
        """(..., d) → one (..., width_t) per tensor."""
        parts = torch.split(flat, list(self.sizes), dim=-1)
        if not self.width:
            return parts
        signs = torch.split(self._signs.to(flat.dtype), list(self.sizes))
        return tuple(
            part if size <= self.width else self._fold(part, sign)
            for part, sign, size in zip(parts, signs, self.sizes, strict=True)
        )

    def transpose(self, parts: tuple[Tensor, ...]) -> Tensor:
        """The adjoint: gradients of the parts (..., width_t) → gradient of the flat vector (..., d)."""
        if not self.width:
            return torch.cat(parts, dim=-1)
        signs = torch.split(self._signs.to(parts[0].dtype), list(self.sizes))
        flat = parts[0].new_empty(*parts[0].shape[:-1], sum(self.sizes))
        into = torch.split(flat, list(self.sizes), dim=-1)
        for part, sign, size, out in zip(parts, signs, self.sizes, into, strict=True):
            if size <= self.width:
                out.copy_(part)
            else:
                self._unfold(part, sign, out)
        return flat

    def _fold(self, part: Tensor, sign: Tensor) -> Tensor:
        """Σ over folds of the signed numbers; the last fold may be short."""
        whole = part.shape[-1] // self.width * self.width
        signed = part * sign
        folded = signed[..., :whole].view(*part.shape[:-1], -1, self.width).sum(-2)
        rest = part.shape[-1] - whole
        return folded + F.pad(signed[..., whole:], (0, self.width - rest)) if rest else folded

    def _unfold(self, part: Tensor, sign: Tensor, out: Tensor) -> None:
        """Every number gets its fold's gradient with its own sign."""
        whole = out.shape[-1] // self.width * self.width
        folds = sign[:whole].view(-1, self.width)
        out[..., :whole] = (part.unsqueeze(-2) * folds).flatten(-2)
        out[..., whole:] = part[..., : out.shape[-1] - whole] * sign[whole:]
