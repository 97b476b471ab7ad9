"""Class-conditional Gaussians of features with one covariance, and the linear classifier that they are.

What pFedFDA estimates, mixes and sends. Everything in float64: covariances of a few rows are nearly
singular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RIDGE = 1e-4
LEAST_ROWS = 3  # of a class, for a mean of its own


@dataclass(frozen=True)
class ClassGaussians:
    means: Tensor  # (C, E)
    covariance: Tensor  # (E, E)

    def mixed(self, other: ClassGaussians, share: float) -> ClassGaussians:
        """`share` of this one and the rest of the other."""
        return ClassGaussians(
            torch.lerp(other.means, self.means, share), torch.lerp(other.covariance, self.covariance, share)
        )

    def discriminants(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The linear discriminants: coefficients (C, E) and intercepts (C,) under class shares (C,)."""
        width = self.covariance.shape[0]
        level = float(self.covariance.diagonal().mean())
        ridge = RIDGE * max(level, 1.0) * torch.eye(width, dtype=torch.float64)
        coefficients = torch.linalg.solve(self.covariance + ridge, self.means.T).T
        smoothed = (shares + RIDGE) / (shares + RIDGE).sum()
        return coefficients, smoothed.log() - 0.5 * (self.means * coefficients).sum(1)


def class_shares(labels: Tensor, classes: int) -> Tensor:
    counts = torch.bincount(labels, minlength=classes).double()
    return counts / max(1, len(labels))


def estimate(features: Tensor, labels: Tensor, instead: ClassGaussians) -> ClassGaussians:
    """Maximum likelihood; a class with too few rows keeps the mean of `instead`."""
    means = instead.means.clone()
    for number in range(len(means)):
        own = features[labels == number]
        if len(own) >= LEAST_ROWS:
            means[number] = own.mean(0)
    centred = features - means[labels]
    return ClassGaussians(means, centred.T @ centred / max(1, len(features) - 1))


def average_gaussians(found: Mapping[str, ClassGaussians], weights: Mapping[str, float]) -> ClassGaussians:
    """Weighted by site, in sorted order."""
    names = sorted(found)
    return ClassGaussians(
        torch.stack([weights[name] * found[name].means for name in names]).sum(0),
        torch.stack([weights[name] * found[name].covariance for name in names]).sum(0),
    )


def best_share(
    features: Tensor, labels: Tensor, shared: ClassGaussians, candidates: Sequence[float], seed: int
) -> float:
    """The share of the local Gaussians with the least log loss in two-fold cross-validation."""
    shares = class_shares(labels, len(shared.means))
    folds = _two_folds(labels, seed)
    if any(len(fold) < 2 for fold in folds):
        return 0.0
    local = [estimate(features[fold], labels[fold], shared) for fold in folds]
    losses = []
    for share in candidates:
        loss = 0.0
        for fitted, held_out in zip(local, reversed(folds), strict=True):
            coefficients, intercepts = fitted.mixed(shared, share).discriminants(shares)
            logits = features[held_out] @ coefficients.T + intercepts
            loss += float(torch.nn.functional.cross_entropy(logits, labels[held_out], reduction="sum"))
        losses.append(loss if np.isfinite(loss) else np.inf)
    return candidates[int(np.argmin(losses))]


def _two_folds(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows in two halves, each class dealt out in turn."""
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    return by_class[0::2], by_class[1::2]
