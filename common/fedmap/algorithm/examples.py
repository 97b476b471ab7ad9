"""What the algorithm learns from: features and outcomes as tensors, with no names and no identifiers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """Rows of one part (train, validation or test) of one site's data."""

    features: Tensor  # (rows, features) float32
    target: Tensor  # (rows,) int64 class index; for survival float64 follow-up time
    event: Tensor | None = None  # (rows,) bool, True where the event happened; survival only

    def __len__(self) -> int:
        return int(self.features.shape[0])
