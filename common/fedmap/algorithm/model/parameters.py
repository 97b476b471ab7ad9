"""Parameters as one flat vector with an ordered list of names and shapes.

The algorithm works on flat vectors (aggregation, Adam and the quadratic penalty are then one operation);
layers see named views of them. A leading batch of sites is allowed everywhere: (..., d).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from fedmap.errors import ModelError


@dataclass(frozen=True)
class ParameterSpec:
    """Ordered names and shapes: the layout of a flat parameter vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes) or len(set(self.names)) != len(self.names):
            raise ModelError(
                "parameter names and shapes do not pair up one to one",
                hint="every parameter needs a name of its own and one shape",
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """The number d of scalar parameters."""
        return sum(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of names, shapes and order: equal exactly when two vectors mean the same thing."""
        layout = json.dumps([self.names, self.shapes], separators=(",", ":"))
        return hashlib.sha256(layout.encode()).hexdigest()

    def views(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Split (..., d) into one view per parameter, each (..., *shape), sharing memory with `flat`."""
        lead = flat.shape[:-1]
        parts = torch.split(flat, list(self.sizes), dim=-1)
        return tuple(part.view(*lead, *shape) for part, shape in zip(parts, self.shapes, strict=True))

    def flatten(self, parts: tuple[Tensor, ...], lead: int = 0) -> Tensor:
        """Join one tensor per parameter, in order, into (..., d); `lead` counts the leading batch axes."""
        return torch.cat([part.flatten(lead) for part in parts], dim=-1)

    def to_mapping(self, flat: Tensor) -> dict[str, Tensor]:
        """Named copies, for writing to a file or sending."""
        self.check(flat)
        views = self.views(flat)
        return {name: view.clone() for name, view in zip(self.names, views, strict=True)}

    def check(self, flat: Tensor) -> None:
        """Refuse a vector of another length, type or with a value that is not finite."""
        if flat.shape[-1:] != (self.size,) or flat.dtype not in (torch.float32, torch.float64):
            raise ModelError(
                f"expected {self.size} floating-point parameters, got {tuple(flat.shape)} of {flat.dtype}",
                hint="check that both sides use the same study plan and model",
            )
        if not bool(torch.isfinite(flat).all()):
            raise ModelError(
                "parameters hold a value that is not finite",
                hint="training diverged: lower the learning rate or check the feature ranges",
            )
