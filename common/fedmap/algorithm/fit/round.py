"""A site's half of a round around its fit: what holds the fit, where it starts, what of it is kept and sent.

A round under the prior is FedMAP's own: R(θ; μ, ψ) holds the fit, and θ_k is sent. The first rounds may be
*consensus* rounds, in which the sites look for a μ that they agree on, by the method of multipliers:

    θ_k ← argmin (1/N_k)·L(θ; Z_k) + α‖θ − μ + u_k‖²,   u_k ← u_k + θ_k − μ,   sent: θ_k + u_k

The multiplier u_k adds up what the pull to μ held back; the site keeps it. The centre averages what it gets,
as ever. Where the rounds come to rest all θ_k equal μ, and μ minimises the weighted mean of their losses. A
site that does not answer counts with what it sent last: left out, it would take its u_k out of a sum that is
zero only over all. The correction is FedDyn's (Acar et al., ICLR 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.rule import AddedGradient, LocalRule
from fedmap.algorithm.fit.values import LocalFit, SiteTask
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings


@dataclass(frozen=True)
class OwnModel:
    """What a site keeps between rounds."""

    parameters: SiteParameters
    multiplier: Tensor | None = None  # (d,) u_k, after a consensus round

    @property
    def is_personal(self) -> bool:
        """Made by a round under the prior. What a consensus round leaves is on its way to the common μ."""
        return self.multiplier is None

    @property
    def update(self) -> SiteParameters:
        """What the centre gets: θ_k, after a consensus round θ_k + u_k."""
        if self.multiplier is None:
            return self.parameters
        return SiteParameters(self.parameters.theta + self.multiplier, self.parameters.buffers)


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

    def kept(self, prior: Prior, own: OwnModel | None, fit: LocalFit) -> OwnModel:
        """What the site keeps of its fit; `own` is what it had before."""
        fitted = SiteParameters(fit.theta, fit.buffers)
        if not self.is_consensus:
            return OwnModel(fitted)
        return OwnModel(fitted, _multiplier(prior, own) + fit.theta - prior.mu)


def _multiplier(prior: Prior, own: OwnModel | None) -> Tensor:
    """u_k: zero before a site's first consensus round."""
    return torch.zeros_like(prior.mu) if own is None or own.multiplier is None else own.multiplier
