"""The proximal term (λ/2)‖θ − w‖² that FedProx, Ditto and fine-tuning towards a global model share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedmap.algorithm.fit.rule import AddedGradient


@dataclass(frozen=True)
class Proximal(AddedGradient):
    """Adds λ(θ − w) to the gradient. Beside θ: w."""

    strength: float

    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:
        gradient.add_(theta, alpha=self.strength).sub_(beside[:, 0], alpha=self.strength)
