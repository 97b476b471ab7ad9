"""A network without its last layer: the features that pFedFDA and pFedGP put a head of their own on.

A linear model has no layer before the last: its features are the inputs themselves, with nothing to train.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import Linear
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Embedding:
    """All layers but the last, and the shape of what was cut off."""

    network: Network
    width: int  # E, the inputs of the last layer
    outputs: int  # of the last layer

    @property
    def size(self) -> int:
        """Parameters before the last layer: they come first in the model's θ."""
        return self.network.spec.size

    def features(self, parameters: SiteParameters, x: Tensor) -> Tensor:
        """(rows, inputs) → (rows, E) in float64, with running batch-norm statistics and no dropout."""
        theta = parameters.theta[: self.size]
        blocks = torch.split(x, ROWS_AT_ONCE)
        return torch.cat([self.network.predict_one(theta, parameters.buffers, b) for b in blocks]).double()


def embedding_of(model: Model) -> Embedding:
    network = model.network
    last = network.trunk[-1]
    if not isinstance(last, Linear):
        raise ModelError(
            "the model does not end in a linear layer, so it has no features to put another head on",
            hint="choose an architecture of the registry whose last layer is linear",
        )
    before = Network(network.inputs, last.inputs, network.branches, network.trunk[:-1])
    return Embedding(before, last.inputs, last.outputs)
