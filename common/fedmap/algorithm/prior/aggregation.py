"""The centre's half of a round: μ' = Σ ω̄_k θ_k, pooled buffers, then S_agg projected gradient steps in ψ.

Sites are taken in sorted order and fetched one block at a time through `load`, so that memory does not
grow with their number and the result does not depend on the order in which they answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.penalty import anchored_penalty
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.prior.weights import normalise
from fedmap.algorithm.settings import AggregationSettings, PriorSettings
from fedmap.errors import ModelError, TrainingError

BLOCK = 32  # sites held in memory at once


@dataclass(frozen=True)
class SiteParameters:
    """The tensors of one site's update."""

    theta: Tensor  # (d,)
    buffers: Buffers


Load = Callable[[str], SiteParameters]


@dataclass(frozen=True)
class PriorStep:
    """The next prior, with what an operator wants to see about how it came to be."""

    prior: Prior
    weights: Mapping[str, float]  # ω̄ by site, summing to one
    penalty: float  # Σ ω̄_k R(θ_k; μ', ψ') after the update
    convex_penalty: float  # the share of it that is f


def next_prior(
    model: ParameterSpec,
    prior_settings: PriorSettings,
    settings: AggregationSettings,
    prior: Prior,
    log_omega: Mapping[str, float],
    load: Load,
) -> PriorStep:
    """γ' from the accepted updates of a round. Pure: the same updates give the same bits."""
    if not log_omega:
        raise TrainingError(
            "a round without a single accepted update has no next prior",
            hint="wait for the quorum, or look at why every site was rejected",
        )
    sites = sorted(log_omega)
    shares = normalise([log_omega[site] for site in sites])
    weights = dict(zip(sites, (float(share) for share in shares), strict=True))
    mean = _mean(model, weights, load)
    psi = _descend(model, prior_settings, settings, mean.mu, prior.psi, weights, load)
    following = Prior(mean.mu, mean.buffers, psi)
    convex = _convex_penalty(model, prior_settings, following, weights, load)
    alpha, epsilon = prior_settings.alpha, prior_settings.epsilon
    quadratic = alpha * mean.spread + epsilon * (mean.square + mean.mu_square)
    return PriorStep(following, weights, convex + quadratic, convex)


def aggregate(model: ParameterSpec, weights: Mapping[str, float], load: Load) -> tuple[Tensor, Buffers]:
    """μ' and its batch-norm statistics: means, the law of total variance, the largest counter. In float64."""
    mean = _mean(model, weights, load)
    return mean.mu, mean.buffers


@dataclass(frozen=True)
class _Mean:
    """What one pass over the updates gives: μ', its buffers, and the squares that the penalty is made of."""

    mu: Tensor  # (d,)
    buffers: Buffers
    square: float  # Σ ω̄_k ‖θ_k‖²
    mu_square: float  # ‖μ'‖²
    spread: float  # Σ ω̄_k ‖θ_k − μ'‖²


def _mean(model: ParameterSpec, weights: Mapping[str, float], load: Load) -> _Mean:
    """Each update is loaded once and turned into float64 once.

    The spread comes from Σ ω̄‖θ−μ'‖² = Σ ω̄‖θ‖² − 2⟨Σ ω̄θ, μ'⟩ + ‖μ'‖². What cancels leaves an error of
    some 1e-16 ‖θ‖²: less than the square of a float32 θ's own rounding, 4e-15 ‖θ‖².
    """
    exact = torch.empty(model.size, dtype=torch.float64)  # one θ at a time
    total = torch.full_like(exact, -0.0)  # adding to −0 changes nothing, not even the sign of a zero
    buffers: _BufferSums | None = None
    square = 0.0
    for site in sorted(weights):
        update, share = load(site), weights[site]
        buffers = buffers or _BufferSums(update.buffers)
        fits = update.theta.shape == total.shape and update.theta.dtype in (torch.float32, torch.float64)
        if not fits or not buffers.fit(update.buffers):
            raise ModelError(
                f"the update of {site} has parameters or batch-norm statistics that do not fit the model",
                hint="reject the update; check that the site uses the same study plan and model",
            )
        exact.copy_(update.theta)
        norm_square = float(torch.dot(exact, exact))
        if not math.isfinite(norm_square):
            model.check(update.theta)  # a look at every value costs more than all the rest
        square += share * norm_square
        total.add_(exact, alpha=share)
        buffers.add(update.buffers, share)
    assert buffers is not None
    mu = total.float()
    exact.copy_(mu)
    mu_square = float(torch.dot(exact, exact))
    spread = max(0.0, square - 2 * float(torch.dot(total, exact)) + mu_square)
    return _Mean(mu, buffers.pooled(), square, mu_square, spread)


class _BufferSums:
    """Running sums of batch-norm statistics. A network without batch-norm has none, which costs nothing."""

    def __init__(self, first: Buffers) -> None:
        self._mean = torch.full_like(first.mean, -0.0, dtype=torch.float64)
        self._moment = self._mean.clone()
        self._count = first.count.clone()

    def fit(self, buffers: Buffers) -> bool:
        """False for what would broadcast or poison the sums: other shapes, or no statistics at all."""
        mean, variance = buffers.mean, buffers.variance
        if not mean.shape == variance.shape == self._mean.shape or buffers.count.shape != self._count.shape:
            return False
        if not mean.numel():
            return True
        finite = torch.isfinite(mean).all() and torch.isfinite(variance).all()
        return bool(finite and (variance >= 0).all())

    def add(self, buffers: Buffers, share: float) -> None:
        if not self._mean.numel():
            return
        mean = buffers.mean.double()
        self._mean.add_(mean, alpha=share)
        self._moment.add_(buffers.variance.double() + mean.square(), alpha=share)
        self._count = torch.maximum(self._count, buffers.count)

    def pooled(self) -> Buffers:
        variance = (self._moment - self._mean.square()).clamp_(min=0)
        return Buffers(self._mean.float(), variance.float(), self._count)


def _descend(
    model: ParameterSpec,
    prior_settings: PriorSettings,
    settings: AggregationSettings,
    mu: Tensor,
    psi: Tensor,
    weights: Mapping[str, float],
    load: Load,
) -> Tensor:
    """S_agg steps on Σ ω̄_k R(θ_k; μ', ψ) in ψ. Only f depends on ψ."""
    if not prior_settings.convex:
        return psi
    network = ConvexNetwork(model, prior_settings)
    psi = psi.clone()
    gradient = torch.zeros_like(psi)
    for _ in range(settings.psi_steps):
        views = network.psi(psi)
        anchor = network.anchor(views, mu)
        gradient.zero_()
        for theta, share in _blocks(weights, load):
            network.add_psi_gradient(views, anchor, theta, mu, share, gradient)
        psi.add_(gradient, alpha=-settings.psi_learning_rate)
        network.project(psi)
    if not bool(torch.isfinite(psi).all()):
        raise TrainingError(
            "the update of ψ left the finite numbers",
            hint="lower aggregation.psi_learning_rate in the study plan",
        )
    return psi


def _convex_penalty(
    model: ParameterSpec, settings: PriorSettings, prior: Prior, weights: Mapping[str, float], load: Load
) -> float:
    """Σ ω̄_k f(θ_k; μ', ψ'), in a pass of its own: ψ' is known only after all others."""
    if not settings.convex:
        return 0.0
    penalty = anchored_penalty(model, settings, prior.mu, prior.psi)
    total = 0.0
    for theta, share in _blocks(weights, load):
        total += float((penalty.convex_value(theta).double() * share).sum())
    return total


def _blocks(weights: Mapping[str, float], load: Load) -> Iterator[tuple[Tensor, Tensor]]:
    """Sites in sorted order, BLOCK at a time: θ (K, d) and ω̄ (K,)."""
    sites = sorted(weights)
    for start in range(0, len(sites), BLOCK):
        block = sites[start : start + BLOCK]
        yield (
            torch.stack([load(site).theta.float() for site in block]),
            torch.tensor([weights[s] for s in block]),
        )
