"""What goes into a local fit and what comes out. Only θ, the buffers and log ω ever leave a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.likelihood import (
    LikelihoodName,
    Outcome,
    negative_log_likelihood,
    output_gradient,
)
from fedmap.algorithm.model.network import Network

GradientSource = Literal["autograd_likelihood", "closed_form", "autograd"]


class OutputLoss(Protocol):
    """A loss of a network's outputs (S, B, outputs), summed over the true rows of each site: (S,)."""

    def __call__(self, outputs: Tensor, outcome: Outcome) -> Tensor: ...


@dataclass(frozen=True)
class Model:
    """A network together with the likelihood it is trained by."""

    network: Network
    likelihood: LikelihoodName
    own_loss: OutputLoss | None = None
    """Trains in place of the likelihood, where the outputs are not yet a prediction."""

    def loss(self, outputs: Tensor, outcome: Outcome) -> Tensor:
        """L summed over the rows of each site: (S, B, outputs) → (S,). Differentiable."""
        if self.own_loss is not None:
            return self.own_loss(outputs, outcome)
        return negative_log_likelihood(self.likelihood, outputs, outcome)

    def output_gradient(self, outputs: Tensor, outcome: Outcome) -> Tensor:
        """∂L/∂outputs, (S, B, outputs)."""
        if self.own_loss is None:
            return output_gradient(self.likelihood, outputs, outcome)
        leaf = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.own_loss(leaf, outcome).sum(), leaf)
        return gradient


@dataclass(frozen=True)
class SiteTask:
    """What one site brings to a fit."""

    theta: Tensor  # (d,) where to start
    buffers: Buffers
    train: Examples
    validation: Examples
    seed: int
    beside: Tensor | None = None  # (k, d) what a local rule keeps beside θ, where it starts


@dataclass(frozen=True)
class LocalFit:
    """What comes out."""

    theta: Tensor
    buffers: Buffers
    log_omega: float | None  # None: a survival site without events has nothing to weigh
    loss: float  # L at θ, summed over the training rows
    penalty: float  # R at θ
    rows: int
    epochs: int
    best_epoch: int
    validation_loss: float | None  # per row; None where the validation part cannot judge
    beside: Tensor | None = None  # (k, d) of a local rule, of the same epoch as θ


@dataclass(frozen=True)
class FailedFit:
    """A fit without a usable result; the reason is for the site and the operator."""

    reason: str
