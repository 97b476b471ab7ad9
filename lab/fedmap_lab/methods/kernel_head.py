"""A Gaussian-process classifier on features: its evidence, to train the features by, and its prediction as
a layer.

The logistic likelihood is handled by Pólya-Gamma augmentation in its mean-field form: each row gets a
weight ω = tanh(c/2)/(2c), c² the second moment of its latent value, and given ω everything is Gaussian. The
bound on the log evidence is Jaakkola and Jordan's. Several classes: one process for each class against the
rest, one kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmap.algorithm.model.layers import Pass, Saved, Shapes
from fedmap.algorithm.model.likelihood import Outcome
from fedmap.errors import ModelError

EVIDENCE_ROWS = 256  # rows that share a process in training; more are cut into blocks
SWEEPS = 6  # of the fixed point for c
FINAL_SWEEPS = 30


@dataclass(frozen=True)
class Kernel:
    """s·exp(−‖z − z'‖² / (2ℓ²E)): distances are per feature, so that ℓ means the same for every width E."""

    scale: float
    length: float

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """(…, A, E), (…, B, E) → (…, A, B)."""
        square = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        distance = (square - 2 * x @ y.transpose(-1, -2)).clamp(min=0)
        return self.scale * torch.exp(distance / (-2 * self.length**2 * x.shape[-1]))


@dataclass(frozen=True)
class Evidence:
    """Minus the bound on the log evidence of each site's rows, (S, B, E) → (S,): the loss of the features."""

    kernel: Kernel
    classes: int

    def __call__(self, outputs: Tensor, outcome: Outcome) -> Tensor:
        assert outcome.label is not None
        total = outputs.new_zeros(len(outputs))
        blocks = (
            torch.split(part, EVIDENCE_ROWS, dim=1) for part in (outputs, outcome.label, outcome.weight)
        )
        for features, label, true_row in zip(*blocks, strict=True):
            weight = true_row.to(outputs.dtype)
            gram = self.kernel(features, features) * weight.unsqueeze(1) * weight.unsqueeze(2)
            for one in range(1, 2) if self.classes == 2 else range(self.classes):
                total = total - bound(gram, (label == one).to(outputs.dtype), weight)
        return total


def bound(gram: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    """Σ [log σ(c) − c/2 + ωc²/2] + ½κᵀΣκ − ½log|I + √ω K √ω|, with Σ = (K⁻¹ + Ω)⁻¹ and κ = y − ½; (S,)."""
    kappa = (positive - 0.5) * weight
    with torch.no_grad():
        c, omega = fixed_point(gram, kappa, weight, SWEEPS)
    root = omega.sqrt()
    cholesky = _factor(gram, root)
    mean = _posterior_mean(gram, kappa, root, cholesky)
    each = (F.logsigmoid(c) - c / 2 + omega * c.square() / 2) * weight
    determinant = cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return each.sum(-1) + 0.5 * (kappa * mean).sum(-1) - determinant


def fixed_point(gram: Tensor, kappa: Tensor, weight: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """c and ω of each row, (S, B): c² = E[f²] under the ω before it."""
    c = torch.ones_like(kappa)
    for _ in range(sweeps):
        root = _omega(c, weight).sqrt()
        cholesky = _factor(gram, root)
        mean = _posterior_mean(gram, kappa, root, cholesky)
        reach = torch.linalg.solve_triangular(cholesky, root.unsqueeze(-1) * gram, upper=False)
        variance = (gram.diagonal(dim1=-2, dim2=-1) - reach.square().sum(-2)).clamp(min=0)
        c = (mean.square() + variance).sqrt()
    return c, _omega(c, weight)


def _omega(c: Tensor, weight: Tensor) -> Tensor:
    safe = c.clamp(min=1e-4)
    return torch.tanh(safe / 2) / (2 * safe) * weight


def _factor(gram: Tensor, root: Tensor) -> Tensor:
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype)
    factor: Tensor = torch.linalg.cholesky(eye + root.unsqueeze(-1) * gram * root.unsqueeze(-2))
    return factor


def _posterior_mean(gram: Tensor, kappa: Tensor, root: Tensor, cholesky: Tensor) -> Tensor:
    """Σκ = Kκ − K√ω (I + √ωK√ω)⁻¹ √ωKκ."""
    direct = (gram @ kappa.unsqueeze(-1)).squeeze(-1)
    inner = torch.cholesky_solve((root * direct).unsqueeze(-1), cholesky)
    return direct - (gram @ (root.unsqueeze(-1) * inner)).squeeze(-1)


@dataclass(frozen=True)
class KernelHead:
    """The process conditioned on up to `rows` labelled rows, as a layer: features → logits.

    A logit is the latent mean over √(1 + πv/8), v its variance, so that its sigmoid is the expected
    probability; of several classes, the logarithms of their probabilities. Conditioned, never trained.
    """

    width: int
    rows: int
    outputs: int
    kernel: Kernel

    def parameters(self) -> Shapes:
        return (
            ("anchors", (self.rows, self.width)),
            ("mean", (self.outputs, self.rows)),
            ("variance", (self.outputs, self.rows, self.rows)),
        )

    def initialise(self, _: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(shape) for _, shape in self.parameters())

    def forward(self, params: tuple[Tensor, ...], x: Tensor, at: Pass) -> tuple[Tensor, Saved]:
        if at.training:
            raise ModelError("a kernel head cannot be trained", hint="condition it on rows instead")
        anchors, mean, variance = params  # (S, M, E), (S, o, M), (S, o, M, M)
        reach = self.kernel(x, anchors)  # (S, B, M)
        latent = reach @ mean.transpose(1, 2)  # (S, B, o)
        taken = torch.einsum("sbm,somn,sbn->sbo", reach, variance, reach)
        logit = latent / torch.sqrt(1 + math.pi / 8 * (self.kernel.scale - taken).clamp(min=0))
        return (logit if self.outputs == 1 else F.logsigmoid(logit)), None

    def backward(
        self, _: tuple[Tensor, ...], __: Saved, ___: Tensor, ____: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        raise ModelError("a kernel head cannot be trained", hint="condition it on rows instead")

    def conditioned(self, features: Tensor, labels: Tensor) -> Tensor:
        """The layer's parameters, flat, from at most `rows` labelled rows, in float64."""
        used = len(features)
        gram = self.kernel(features, features)[None]
        weight = torch.ones(1, used, dtype=torch.float64)
        anchors = torch.zeros(self.rows, self.width, dtype=torch.float64)
        anchors[:used] = features
        mean = torch.zeros(self.outputs, self.rows, dtype=torch.float64)
        variance = torch.zeros(self.outputs, self.rows, self.rows, dtype=torch.float64)
        for number in range(self.outputs):
            positive = labels == (1 if self.outputs == 1 else number)
            kappa = positive.double()[None] - 0.5
            _, omega = fixed_point(gram, kappa, weight, FINAL_SWEEPS)
            root = omega.sqrt()
            cholesky = _factor(gram, root)
            inverse = torch.cholesky_inverse(cholesky[0]) * root[0] * root[0].unsqueeze(-1)
            variance[number, :used, :used] = inverse
            mean[number, :used] = kappa[0] - inverse @ (gram[0] @ kappa[0])
        return torch.cat([part.flatten() for part in (anchors, mean, variance)]).float()
