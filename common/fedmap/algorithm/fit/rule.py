"""The one place where another way of taking a local step is put into a fit.

A fit under the prior needs none: it takes Adam steps on L/N + R. FedMAP's consensus rounds and the lab's
baselines each have one. A rule sees, for each batch, θ of the sites in it, the vectors it keeps beside θ, and
the gradient of L/N as a function; it moves all of them in place. Batches, early stopping, the best weights
and the loss stay with `batched`, the same for every rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedmap.algorithm.fit.adam import Adam

Gradient = Callable[[Tensor], Tensor]
"""θ (s, d) → the gradient of the batch's L/N there, weight decay included, (s, d). A fresh tensor."""


@dataclass(frozen=True)
class FitStart:
    """What a rule may know of a fit of S sites before its first batch."""

    theta: Tensor  # (S, d), where the sites start
    rows: Tensor  # (S,) float32 training rows
    seeds: Sequence[int]
    learning_rate: float


class LocalSteps(Protocol):
    """The steps of one fit. Sites come as a prefix: the first `len(theta)` of those that still train."""

    def step(self, theta: Tensor, beside: Tensor, gradient: Gradient) -> None:
        """One batch: move θ (s, d) and what is kept beside it (s, k, d), in place."""

    def select(self, keep: Tensor) -> None:
        """Go on with some of the sites; the others have stopped early."""


class LocalRule(Protocol):
    """Makes the steps of a fit. Holds no state of its own: one rule serves many fits at once."""

    def begin(self, start: FitStart) -> LocalSteps: ...


class AddedGradient(ABC):
    """A rule that takes Adam steps on the gradient of L/N with something added to it or taken from it."""

    @abstractmethod
    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:
        """Change `gradient` (s, d), in place."""

    def begin(self, start: FitStart) -> LocalSteps:
        return _AddedGradientSteps(self, Adam(start.theta, start.learning_rate))


class _AddedGradientSteps:
    def __init__(self, rule: AddedGradient, adam: Adam) -> None:
        self._rule = rule
        self._adam = adam

    def step(self, theta: Tensor, beside: Tensor, gradient: Gradient) -> None:
        grad = gradient(theta)
        self._rule.add(theta, beside, grad)
        self._adam.step(theta, grad)

    def select(self, keep: Tensor) -> None:
        self._adam.select(keep)
