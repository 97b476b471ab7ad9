"""What goes into a local fit and what comes out. Only θ, the buffers and log ω ever leave a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from common.algorithm.examples import Examples
from common.algorithm.layers import Buffers
from common.algorithm.likelihood import LikelihoodName
from common.algorithm.network import Network

GradientSource = Literal["autograd_likelihood", "closed_form", "autograd"]


@dataclass(frozen=True)
class Model:
    """A network together with the likelihood it is trained by."""

    network: Network
    likelihood: LikelihoodName


@dataclass(frozen=True)
class SiteTask:
    """What one site brings to a fit."""

    theta: Tensor  # (d,) where to start
    buffers: Buffers
    train: Examples
    validation: Examples
    seed: int


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


@dataclass(frozen=True)
class FailedFit:
    """A fit without a usable result; the reason is for the site and the operator."""

    reason: str
