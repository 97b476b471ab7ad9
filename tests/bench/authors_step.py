"""A site's fit as in the code released with the paper: one site, one `nn.Module`, one Adam, autograd for all.

Written anew from reading that code (github.com/CambridgeCIA/FedMAP), as the baseline that speed is held
against. As there, one input-convex network per parameter tensor is evaluated on the joined (θ, μ) in every
step, and μ and ψ keep `requires_grad`, so that each step takes their gradients too. Batches are cut by index,
the faster of the two ways in that code; clipping, logging and files are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.model.layers import BatchNorm, Dropout, Layer, Linear, Relu
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.settings import FedmapSettings

Loss = Callable[[Tensor, Examples], Tensor]


class PlainNetwork(nn.Module):
    """A network of ours as plain torch layers; `load` puts a flat θ into it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.spec = network.spec
        self.columns = [slice(branch.start, branch.stop) for branch in network.branches]
        self.towers = nn.ModuleList(plain_layers(branch.layers) for branch in network.branches)
        self.trunk = plain_layers(network.trunk)

    def load(self, theta: Tensor) -> PlainNetwork:
        with torch.no_grad():
            for parameter, view in zip(self.parameters(), self.spec.views(theta), strict=True):
                parameter.copy_(view)
        return self

    def forward(self, rows: Tensor) -> Tensor:
        if self.towers:
            seen = zip(self.towers, self.columns, strict=True)
            rows = torch.cat([tower(rows[:, columns]) for tower, columns in seen], dim=1)
        output: Tensor = self.trunk(rows)
        return output


def plain_layers(layers: Sequence[Layer]) -> nn.Sequential:
    made: list[nn.Module] = []
    for layer in layers:
        match layer:
            case Linear():
                made.append(nn.Linear(layer.inputs, layer.outputs))
            case BatchNorm():
                made.append(nn.BatchNorm1d(layer.channels))
            case Dropout():
                made.append(nn.Dropout(layer.rate))
            case Relu():
                made.append(nn.ReLU())
            case _:
                raise TypeError(f"{type(layer).__name__} has no counterpart in torch.nn here")
    return nn.Sequential(*made)


class ConvexPrior(nn.Module):
    """R(θ; μ, ψ): one small network over (θ_j, μ_j) for each parameter tensor j, and the quadratic terms."""

    def __init__(self, theta: nn.Module, alpha: float, epsilon: float, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.alpha, self.epsilon = alpha, epsilon
        first, second = hidden
        self.networks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(2 * tensor.numel(), first),
                nn.Softplus(),
                nn.Linear(first, second),
                nn.Softplus(),
                nn.Linear(second, 1),
            )
            for tensor in theta.parameters()
        )

    def forward(self, theta: nn.Module, mu: nn.Module) -> Tensor:
        total = torch.zeros(())
        for network, own, common in zip(self.networks, theta.parameters(), mu.parameters(), strict=True):
            x, m = own.view(1, -1), common.view(1, -1)
            total = total + network(torch.cat((x, m), dim=-1)).sum()
            total = total + self.alpha * (x - m).pow(2).sum()
            total = total + self.epsilon * (x.pow(2).sum() + m.pow(2).sum())
        return total


def fit(
    network: Network,
    settings: FedmapSettings,
    loss: Loss,
    theta: Tensor,
    train: Examples,
    validation: Examples,
) -> PlainNetwork:
    """Train from θ, stop early by the validation part, end at the best epoch."""
    training, prior_settings = settings.training, settings.prior
    own, mu = PlainNetwork(network).load(theta), PlainNetwork(network).load(theta)
    prior = ConvexPrior(own, prior_settings.alpha, prior_settings.epsilon, prior_settings.hidden)
    adam = torch.optim.Adam(own.parameters(), training.learning_rate, weight_decay=training.weight_decay)
    best, waited, kept = float("inf"), 0, own.state_dict()
    for _ in range(training.epochs):
        own.train()
        for index in torch.split(torch.randperm(len(train)), training.batch_size):
            batch = taken(train, index)
            adam.zero_grad()
            value = loss(own(batch.features), batch) + prior(own, mu)
            value.backward()
            adam.step()
        own.eval()
        with torch.no_grad():
            judged = float(loss(own(validation.features), validation) + prior(own, mu))
        waited = 0 if judged < best else waited + 1
        if judged < best:
            best, kept = judged, deepcopy(own.state_dict())
        if waited >= training.patience:
            break
    own.load_state_dict(kept)
    return own


def taken(rows: Examples, index: Tensor) -> Examples:
    event = None if rows.event is None else rows.event[index]
    return Examples(rows.features[index], rows.target[index], event)


def cross_entropy(outputs: Tensor, rows: Examples) -> Tensor:
    return nn.functional.cross_entropy(outputs, rows.target)


def cox(outputs: Tensor, rows: Examples) -> Tensor:
    """Breslow's partial likelihood per event, as pycox takes it."""
    assert rows.event is not None
    order = rows.target.argsort(descending=True)
    eta, event = outputs[order, 0], rows.event[order].float()
    peak = eta.max()
    at_risk = (eta - peak).exp().cumsum(0).add(1e-7).log() + peak
    return -((eta - at_risk) * event).sum() / event.sum().clamp(min=1)
