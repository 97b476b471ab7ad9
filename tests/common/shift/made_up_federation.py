"""A made-up federation: four correlated numbers, one indicator, sites that differ a little."""

from __future__ import annotations

import torch
from torch import Tensor

NAMES = ("age", "pressure", "lipids", "sugar", "sex=M")
SCALED = (True, True, True, True, False)
FLOOR = 10
_MIX = torch.tensor(
    [[1.0, 0.0, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0], [0.0, 0.3, 0.95, 0.0], [0.5, 0.0, 0.0, 0.87]]
)


def draw_site(seed: int, rows: int = 300, spread: float = 0.12) -> Tensor:
    """Rows of one site, scaled."""
    generator = torch.Generator().manual_seed(seed)
    place = spread * torch.randn(4, generator=generator)
    numbers = (place + torch.randn(rows, 4, generator=generator)) @ _MIX.T
    sex = (torch.rand(rows, 1, generator=generator) < 0.5).float()
    return torch.cat([numbers, sex], dim=1)
