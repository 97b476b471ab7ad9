"""A fitted network made ready to predict many rows: `Network.predict_one` on scaled rows, only faster.

The same operations in the same order, so the same numbers; but for one model, without an axis of sites, with
constants prepared once and results written over what is no longer needed. A test holds the two together.
Dropout does nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.algorithm.model.layers import BATCH_NORM_EPSILON, BatchNorm, Buffers, Layer, Linear, Relu
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _Weights:
    """h ↦ h Wᵀ + b."""

    weight: Tensor  # (inputs, outputs)
    bias: Tensor


@dataclass(frozen=True)
class _Normalised:
    """h ↦ (h − mean)·factor + bias."""

    mean: Tensor
    factor: Tensor
    bias: Tensor


@dataclass(frozen=True)
class _Section:
    """A branch or the trunk; None stands for ReLU."""

    start: int
    stop: int
    steps: tuple[_Weights | _Normalised | None, ...]

    def run(self, h: Tensor) -> Tensor:
        """`h` may be overwritten."""
        for step in self.steps:
            if step is None:
                h.relu_()
            elif isinstance(step, _Weights):
                h = torch.addmm(step.bias, h, step.weight)
            else:
                torch.addcmul(step.bias, h.sub_(step.mean), step.factor, out=h)
        return h


class PredictionNetwork:
    """One model with its scaler."""

    def __init__(self, network: Network, parameters: SiteParameters, scaler: Scaler) -> None:
        walk = _Walk(iter(network.spec.views(parameters.theta)), parameters.buffers)
        self._branches = tuple(_Section(b.start, b.stop, walk.steps(b.layers)) for b in network.branches)
        self._trunk = _Section(0, network.inputs, walk.steps(network.trunk))
        self._inputs = network.inputs
        self._scaler = scaler

    def outputs(self, features: Tensor) -> Tensor:
        """(rows, inputs), not scaled → (rows, outputs). An output that is no finite number is an error."""
        if features.ndim != 2 or features.shape[1] != self._inputs:
            raise ModelError(
                f"the model has {self._inputs} inputs, and the rows have {features.shape[-1]}",
                hint="Check the rows against the bundle's own plan.",
            )
        with torch.inference_mode():
            raw = torch.cat([self._forward(block) for block in torch.split(features, ROWS_AT_ONCE)])
            if not bool(torch.isfinite(raw).all()):
                raise ModelError(
                    "the model gives values that are not finite for some rows",
                    hint="Check the ranges of the columns; if they are right, tell who released the bundle.",
                )
        return raw

    def _forward(self, x: Tensor) -> Tensor:
        h = (x - self._scaler.mean).div_(self._scaler.deviation)
        if self._branches:
            h = torch.cat([branch.run(h[:, branch.start : branch.stop]) for branch in self._branches], dim=1)
        return self._trunk.run(h)


class _Walk:
    """Goes through the layers of a network in their order, with the parameters that belong to each."""

    def __init__(self, views: Iterator[Tensor], buffers: Buffers) -> None:
        self._views = views
        self._buffers = buffers
        self._channels = 0

    def steps(self, layers: tuple[Layer, ...]) -> tuple[_Weights | _Normalised | None, ...]:
        steps: list[_Weights | _Normalised | None] = []
        for layer in layers:
            own = [next(self._views) for _ in layer.parameters()]
            if isinstance(layer, Linear):
                steps.append(_Weights(own[0].t(), own[1]))
            elif isinstance(layer, BatchNorm):
                here = slice(self._channels, self._channels + layer.channels)
                self._channels += layer.channels
                scale = torch.rsqrt(self._buffers.variance[here] + BATCH_NORM_EPSILON)
                steps.append(_Normalised(self._buffers.mean[here], scale * own[0], own[1]))
            elif isinstance(layer, Relu):
                steps.append(None)
        return tuple(steps)
