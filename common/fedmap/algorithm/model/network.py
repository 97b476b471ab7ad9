"""A model as data: branches over column ranges, joined, then a trunk. Evaluated for many sites at once.

A network holds no parameters; it says what they are (`spec`), how they start (`initialise`), what they
predict (`predict`) and what their gradient is. Architectures are named in `fedmap.study.models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedmap.algorithm.model.layers import (
    BATCH_NORM_MOMENTUM,
    BatchNorm,
    Buffers,
    Dropout,
    Layer,
    Pass,
    Relu,
    Saved,
)
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.seeding import torch_stream
from fedmap.errors import ModelError

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Branch:
    """A tower of layers that sees the feature columns start … stop−1."""

    name: str
    start: int
    stop: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Trace:
    """What a training pass leaves for its backward pass."""

    at: Pass
    saved: tuple[Saved, ...]
    widths: tuple[int, ...]  # outputs of each branch, to cut the joined gradient apart


@dataclass(frozen=True)
class Network:
    """Branches (possibly none) → concatenation → trunk."""

    inputs: int
    outputs: int
    branches: tuple[Branch, ...]
    trunk: tuple[Layer, ...]

    def __post_init__(self) -> None:
        sections = [branch.layers for branch in self.branches] or [self.trunk]
        if any(section and isinstance(section[0], Relu | Dropout) for section in sections):
            raise ModelError(
                "a network may not begin with ReLU or dropout: they would change the features",
                hint="put a linear layer first in the registry's architecture",
            )

    @cached_property
    def named_layers(self) -> tuple[tuple[str, Layer], ...]:
        named = [(f"{b.name}.{i}", layer) for b in self.branches for i, layer in enumerate(b.layers)]
        return (*named, *((f"trunk.{i}", layer) for i, layer in enumerate(self.trunk)))

    @cached_property
    def spec(self) -> ParameterSpec:
        entries = [
            (f"{at}.{name}", shape) for at, layer in self.named_layers for name, shape in layer.parameters()
        ]
        return ParameterSpec(tuple(name for name, _ in entries), tuple(shape for _, shape in entries))

    @cached_property
    def dropouts(self) -> tuple[Dropout, ...]:
        """Dropout layers that act, in the order in which a pass meets them."""
        return tuple(layer for _, layer in self.named_layers if isinstance(layer, Dropout) and layer.rate > 0)

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """Channels of each batch-norm layer."""
        return tuple(layer.channels for _, layer in self.named_layers if isinstance(layer, BatchNorm))

    def initialise(self, seed: int) -> Tensor:
        generator = torch_stream(seed)
        parts = [part for _, layer in self.named_layers for part in layer.initialise(generator)]
        return self.spec.flatten(tuple(parts))

    def is_awake(self, theta: Tensor) -> bool:
        """Whether a row of zeros, the mean patient, leaves units of each ReLU layer above zero."""
        fresh = self.initial_buffers()
        at = Pass(training=False, buffers=Buffers(fresh.mean[None], fresh.variance[None], fresh.count[None]))
        with torch.no_grad():
            _, trace = self.forward(self.spec.views(theta[None]), torch.zeros(1, 1, self.inputs), at)
        layers = zip(self.named_layers, trace.saved, strict=True)
        return all(layer.is_awake(y) for (_, layer), y in layers if isinstance(layer, Relu))

    def initial_buffers(self) -> Buffers:
        channels = sum(self.channels)
        count = torch.zeros(len(self.channels), dtype=torch.int64)
        return Buffers(torch.zeros(channels), torch.ones(channels), count)

    def forward(self, params: tuple[Tensor, ...], x: Tensor, at: Pass) -> tuple[Tensor, Trace]:
        """(S, B, inputs) → (S, B, outputs). Differentiable; `at` gathers batch statistics on the way."""
        saved: list[Saved] = []
        remaining = iter(params)
        h = x
        widths: tuple[int, ...] = ()
        if self.branches:
            outs = [
                self._run(b.layers, remaining, x[..., b.start : b.stop], at, saved) for b in self.branches
            ]
            widths = tuple(int(out.shape[-1]) for out in outs)
            h = torch.cat(outs, dim=-1)
        h = self._run(self.trunk, remaining, h, at, saved)
        return h, Trace(at, tuple(saved), widths)

    def backward(self, params: tuple[Tensor, ...], trace: Trace, grad: Tensor) -> tuple[Tensor, ...]:
        """Gradients of all parameters, in order, from the gradient of the outputs; training passes only."""
        sections = [*(b.layers for b in self.branches), self.trunk]
        pieces: list[tuple[Tensor, ...]] = []
        last_param, last_layer = len(params), len(trace.saved)
        grads_in: list[Tensor] = [grad]
        for section in reversed(sections):
            joined = bool(self.branches) and section is self.trunk
            found, grad_x, last_param, last_layer = self._run_back(
                section, params, trace.saved, last_param, last_layer, grads_in.pop(), needs_input=joined
            )
            pieces.append(found)
            if joined and grad_x is not None:
                grads_in = list(torch.split(grad_x, list(trace.widths), dim=-1))
        return tuple(g for piece in reversed(pieces) for g in piece)

    def predict(self, theta: Tensor, buffers: Buffers, x: Tensor) -> Tensor:
        """Outputs (S, B, outputs) with running batch-norm statistics and no dropout."""
        with torch.no_grad():
            at = Pass(training=False, keeps=False, buffers=buffers)
            return self.forward(self.spec.views(theta), x, at)[0]

    def predict_one(self, theta: Tensor, buffers: Buffers, x: Tensor) -> Tensor:
        """Outputs (B, outputs) of a single model θ (d,) on rows (B, inputs)."""
        one = Buffers(buffers.mean[None], buffers.variance[None], buffers.count[None])
        return self.predict(theta[None], one, x[None])[0]

    def predict_rows(self, theta: Tensor, buffers: Buffers, x: Tensor) -> Tensor:
        """The same for any number of rows, a block at a time."""
        return torch.cat([self.predict_one(theta, buffers, part) for part in torch.split(x, ROWS_AT_ONCE)])

    def moved_buffers(self, before: Buffers, at: Pass) -> Buffers:
        """Running statistics after a training pass, with torch's momentum of 0.1."""
        if not at.batch_mean:
            return before
        mean = torch.lerp(before.mean, torch.cat(at.batch_mean, dim=-1), BATCH_NORM_MOMENTUM)
        variance = torch.lerp(before.variance, torch.cat(at.batch_variance, dim=-1), BATCH_NORM_MOMENTUM)
        return Buffers(mean, variance, before.count + 1)

    @staticmethod
    def _run(
        layers: tuple[Layer, ...], params: Iterator[Tensor], h: Tensor, at: Pass, saved: list[Saved]
    ) -> Tensor:
        for layer in layers:
            own = tuple(next(params) for _ in layer.parameters())
            h, kept = layer.forward(own, h, at)
            saved.append(kept if at.keeps else None)
        return h

    @staticmethod
    def _run_back(
        layers: tuple[Layer, ...],
        params: tuple[Tensor, ...],
        saved: tuple[Saved, ...],
        last_param: int,
        last_layer: int,
        grad: Tensor,
        needs_input: bool,
    ) -> tuple[tuple[Tensor, ...], Tensor | None, int, int]:
        found: list[Tensor] = []
        grad_x: Tensor | None = grad
        for position in reversed(range(len(layers))):
            layer = layers[position]
            first = last_param - len(layer.parameters())
            last_layer -= 1
            assert grad_x is not None
            grad_x, own = layer.backward(
                params[first:last_param], saved[last_layer], grad_x, needs_input or position > 0
            )
            found[:0] = own
            last_param = first
        return tuple(found), grad_x, last_param, last_layer
