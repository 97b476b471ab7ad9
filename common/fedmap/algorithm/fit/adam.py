"""Adam for S sites at once on flat vectors, with a step count of its own for each site.

The same recursion as torch.optim.Adam (β = 0.9, 0.999; ε = 1e-8); that one keeps a single step count, and
sites of different sizes take different numbers of steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    def __init__(self, theta: Tensor, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._first = torch.zeros_like(theta)
        self._second = torch.zeros_like(theta)
        self._steps = torch.zeros(theta.shape[0], 1, dtype=torch.float64)

    def step(self, theta: Tensor, grad: Tensor) -> None:
        """Move the first `len(theta)` sites, in place."""
        sites = theta.shape[0]
        first, second = self._first[:sites], self._second[:sites]
        steps = self._steps[:sites].add_(1)
        first.lerp_(grad, 1 - BETA_1)
        second.mul_(BETA_2).addcmul_(grad, grad, value=1 - BETA_2)
        # θ −= rate · m̂ / (√v̂ + ε), with both bias corrections moved out of the long vectors.
        unbias = (1 - BETA_2**steps).sqrt()  # (S, 1)
        rate = (self._learning_rate * unbias / (1 - BETA_1**steps)).to(theta.dtype)
        direction = first / second.sqrt().add_((EPSILON * unbias).to(theta.dtype))
        theta.addcmul_(direction, rate, value=-1.0)

    def select(self, keep: Tensor) -> None:
        """Go on with some of the sites."""
        self._first, self._second, self._steps = self._first[keep], self._second[keep], self._steps[keep]
