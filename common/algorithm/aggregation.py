"""The centre's half of a round: μ' = Σ ω̄_k θ_k, pooled buffers, then S_agg projected gradient steps in ψ.

Sites are taken in sorted order and fetched one block at a time through `load`, so that memory does not
grow with their number and the result does not depend on the order in which they answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from common.algorithm.convex_network import ConvexNetwork
from common.algorithm.layers import Buffers
from common.algorithm.parameters import ParameterSpec
from common.algorithm.penalty import anchored_penalty
from common.algorithm.prior import Prior
from common.algorithm.settings import AggregationSettings, PriorSettings
from common.algorithm.weights import normalise
from common.errors import ModelError, TrainingError

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
    mu, buffers = aggregate(model, weights, load)
    psi = _descend(model, prior_settings, settings, mu, prior.psi, weights, load)
    following = Prior(mu, buffers, psi)
    penalty, convex = _penalty(model, prior_settings, following, weights, load)
    return PriorStep(following, weights, penalty, convex)


def aggregate(model: ParameterSpec, weights: Mapping[str, float], load: Load) -> tuple[Tensor, Buffers]:
    """μ' and its batch-norm statistics: means, the law of total variance, the largest counter. In float64."""
    mu: Tensor | None = None
    mean = square = count = None
    for site in sorted(weights):
        update = load(site)
        model.check(update.theta)
        _check_shapes(site, update, model.size, mean, count)
        share = weights[site]
        here, spread = update.buffers.mean.double(), update.buffers.variance.double()
        if mu is None or mean is None or square is None or count is None:
            mu, mean = update.theta.double() * share, here * share
            square, count = (spread + here.square()) * share, update.buffers.count.clone()
            continue
        mu.add_(update.theta.double(), alpha=share)
        mean.add_(here, alpha=share)
        square.add_(spread + here.square(), alpha=share)
        count = torch.maximum(count, update.buffers.count)
    assert mu is not None
    assert mean is not None
    assert square is not None
    assert count is not None
    variance = (square - mean.square()).clamp_(min=0)
    return mu.float(), Buffers(mean.float(), variance.float(), count)


def _check_shapes(
    site: str, update: SiteParameters, size: int, mean: Tensor | None, count: Tensor | None
) -> None:
    """Refuse what would broadcast or poison the mean: other shapes, or buffers that are no statistics."""
    buffers = update.buffers
    fits = update.theta.shape == (size,) and buffers.mean.shape == buffers.variance.shape
    if mean is not None and count is not None:
        fits &= buffers.mean.shape == mean.shape and buffers.count.shape == count.shape
    sound = bool(torch.isfinite(buffers.mean).all() and torch.isfinite(buffers.variance).all())
    if not fits or not sound or bool((buffers.variance < 0).any()):
        raise ModelError(
            f"the update of {site} has parameters or batch-norm statistics that do not fit the model",
            hint="reject the update; check that the site uses the same study plan and model",
        )


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


def _penalty(
    model: ParameterSpec, settings: PriorSettings, prior: Prior, weights: Mapping[str, float], load: Load
) -> tuple[float, float]:
    penalty = anchored_penalty(model, settings, prior.mu, prior.psi)
    total = convex = 0.0
    for theta, share in _blocks(weights, load):
        total += float((penalty.value(theta).double() * share).sum())
        convex += float((penalty.convex_value(theta).double() * share).sum())
    return total, convex


def _blocks(weights: Mapping[str, float], load: Load) -> Iterator[tuple[Tensor, Tensor]]:
    """Sites in sorted order, BLOCK at a time: θ (K, d) and ω̄ (K,)."""
    sites = sorted(weights)
    for start in range(0, len(sites), BLOCK):
        block = sites[start : start + BLOCK]
        yield (
            torch.stack([load(site).theta.float() for site in block]),
            torch.tensor([weights[s] for s in block]),
        )
