"""Inputs as the joint comparison sees them: themselves where they are few, folded sums where they are many.

The fold is the algorithm's sketch, with signs that never change: number j of a row gets a random sign and
goes to sum j mod 64. A folded sum still moves when its inputs do, and means and covariances fold like rows.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from fedmap.algorithm.prior.sketch import Sketch

MOST_DIMENSIONS = 64

_SEED = 4_600_408  # of the signs; the same for every study and release, as both ends must agree


def dimensions(inputs: int) -> int:
    """Length of a folded row."""
    return min(inputs, MOST_DIMENSIONS)


def is_folded(inputs: int) -> bool:
    """Whether a dimension is a sum of several inputs."""
    return inputs > MOST_DIMENSIONS


def fold(values: Tensor) -> Tensor:
    """(..., inputs) → (..., dimensions)."""
    if not is_folded(values.shape[-1]):
        return values
    (folded,) = _sketch(values.shape[-1]).apply(values)
    return folded


@lru_cache(maxsize=4)
def _sketch(inputs: int) -> Sketch:
    return Sketch((inputs,), MOST_DIMENSIONS, _SEED)
