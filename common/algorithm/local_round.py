"""A site's half of a round around its fit: what holds the fit, where it starts, what of it is kept.

A round under the prior is FedMAP's own: R(θ; μ, ψ) holds the fit. The first rounds may be *consensus* rounds,
in which the sites look for a μ that they agree on, by the method of multipliers:

    θ_k ← argmin (1/N_k)·L(θ; Z_k) + α‖θ − μ + u_k‖²,   u_k ← u_k + θ_k − μ

The multiplier u_k adds up what the pull to μ held back; it stays at the site. Where the rounds come to rest
all θ_k equal μ, and μ minimises the weighted mean of the sites' losses. In both kinds of rounds θ_k is sent;
the centre's half is in `aggregation`. The correction is FedDyn's (Acar et al., ICLR 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.algorithm.aggregation import SiteParameters
from common.algorithm.examples import Examples
from common.algorithm.local_fit import LocalFit, SiteTask
from common.algorithm.local_rule import AddedGradient, LocalRule
from common.algorithm.prior import Prior
from common.algorithm.settings import FedmapSettings


@dataclass(frozen=True)
class OwnModel:
    """What a site keeps between rounds."""

    parameters: SiteParameters
    multiplier: Tensor | None = None  # (d,) u_k, after a consensus round; it never leaves the site


@dataclass(frozen=True)
class MultiplierPull(AddedGradient):
    """Adds 2α(θ − μ + u_k), the gradient of α‖θ − μ + u_k‖². Beside θ: μ and u_k."""

    alpha: float

    def add(self, theta: Tensor, beside: Tensor, gradient: Tensor) -> None:
        gradient.add_(theta - beside[:, 0] + beside[:, 1], alpha=2 * self.alpha)


@dataclass(frozen=True)
class LocalRound:
    """Round `number`, from 1, of `rounds`, under the settings of a study."""

    settings: FedmapSettings
    number: int
    rounds: int

    @property
    def is_consensus(self) -> bool:
        return self.settings.is_consensus(self.number, self.rounds)

    @property
    def rule(self) -> LocalRule | None:
        """The fit's steps, where it is not held by the prior."""
        return MultiplierPull(self.settings.prior.alpha) if self.is_consensus else None

    def task(
        self, prior: Prior, own: OwnModel | None, train: Examples, validation: Examples, seed: int
    ) -> SiteTask:
        """The fit, started where the plan says: at the site's own θ_k, where it has one, or at μ."""
        start = SiteParameters(prior.mu, prior.buffers)
        if own is not None and self.settings.training.start == "local":
            start = own.parameters
        beside = torch.stack([prior.mu, _multiplier(prior, own)]) if self.is_consensus else None
        return SiteTask(start.theta, start.buffers, train, validation, seed, beside)

    def kept(self, prior: Prior, own: OwnModel | None, fit: LocalFit, clip_norm: float = 0.0) -> OwnModel:
        """What the site keeps of its fit; `own` is what it had before.

        Where the site lets out no step longer than `clip_norm` (0: any), the multiplier adds up what it lets
        out: the centre, whose U is the mean of the multipliers, sees no more than that.
        """
        fitted = SiteParameters(fit.theta, fit.buffers)
        if not self.is_consensus:
            return OwnModel(fitted)
        step = fit.theta - prior.mu
        length = float(torch.linalg.vector_norm(step))
        if clip_norm and length > clip_norm:
            step = step * (clip_norm / length)
        return OwnModel(fitted, _multiplier(prior, own) + step)


def _multiplier(prior: Prior, own: OwnModel | None) -> Tensor:
    """u_k: zero before a site's first consensus round."""
    return torch.zeros_like(prior.mu) if own is None or own.multiplier is None else own.multiplier
