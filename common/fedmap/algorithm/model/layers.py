"""The layers that models are made of, each over a leading axis of sites, each with its own backward pass.

Every layer maps (S, B, in) to (S, B, out) for S sites at once, a single site being S = 1. `forward` is
plain differentiable torch, so autograd can be used on it; `backward` is the same gradient in closed form,
which is what makes the vectorised engine fast. A test holds the two together for every layer.

No layer owns parameters: they come as views of the flat vector. No layer draws random numbers: dropout
gets its mask from `batches`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
Saved: TypeAlias = Any  # what a layer keeps from forward for its own backward; nobody else looks inside

BATCH_NORM_EPSILON = 1e-5
LEAST_AWAKE = 2  # units of a ReLU layer: one alone may soon be asleep as well
BATCH_NORM_MOMENTUM = 0.1


@dataclass(frozen=True)
class Buffers:
    """Batch-norm statistics of all layers of a network, flat. Not part of θ."""

    mean: Tensor  # (..., channels) float32
    variance: Tensor  # (..., channels) float32
    count: Tensor  # (..., layers) int64: training batches seen


@dataclass
class Pass:
    """One pass through a network: what layers need beside their input, and what they leave behind."""

    training: bool
    keeps: bool = True  # what a layer saves, and a graph; without, memory is used again on the way
    rows: Tensor | None = None  # (S, 1, 1) true rows per site, only where sites are padded
    mask: Tensor | None = None  # (S, B, 1) 1 for a true row, 0 for padding
    keep: tuple[Tensor, ...] = ()  # dropout masks, already divided by the keep probability, in layer order
    buffers: Buffers | None = None
    batch_mean: list[Tensor] = field(default_factory=list)  # (S, C) per batch-norm layer, training only
    batch_variance: list[Tensor] = field(default_factory=list)  # unbiased
    dropouts_done: int = 0
    channels_done: int = 0


@dataclass(frozen=True)
class Linear:
    inputs: int
    outputs: int

    def parameters(self) -> Shapes:
        return (("weight", (self.outputs, self.inputs)), ("bias", (self.outputs,)))

    def initialise(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Uniform in ±1/√inputs, as torch.nn.Linear does."""
        bound = 1.0 / math.sqrt(self.inputs)
        shapes = [shape for _, shape in self.parameters()]
        return tuple(torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in shapes)

    def forward(self, params: tuple[Tensor, ...], x: Tensor, _: Pass) -> tuple[Tensor, Saved]:
        weight, bias = params  # (S, out, in), (S, out)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2)), x

    def backward(
        self, params: tuple[Tensor, ...], x: Saved, grad: Tensor, needs_input: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        weight, _ = params
        if self.inputs < self.outputs:  # the product with the longer rows runs several times faster
            by_weight = torch.bmm(x.transpose(1, 2), grad).transpose(1, 2)
        else:
            by_weight = torch.bmm(grad.transpose(1, 2), x)
        grads = (by_weight, grad.sum(1))
        return (torch.bmm(grad, weight) if needs_input else None), grads


@dataclass(frozen=True)
class Relu:
    def parameters(self) -> Shapes:
        return ()

    def initialise(self, _: torch.Generator) -> tuple[Tensor, ...]:
        return ()

    def forward(self, _: tuple[Tensor, ...], x: Tensor, __: Pass) -> tuple[Tensor, Saved]:
        y = torch.relu_(x)  # in place: no layer before needs its own output again
        return y, y

    def is_awake(self, y: Saved) -> bool:
        """Of a single row: two units above zero, or the one that there is."""
        return bool((y > 0).sum() >= min(LEAST_AWAKE, y.shape[-1]))

    def backward(
        self, _: tuple[Tensor, ...], y: Saved, grad: Tensor, __: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        return torch.ops.aten.threshold_backward.grad_input(grad, y, 0, grad_input=grad), ()


@dataclass(frozen=True)
class BatchNorm:
    """Normalises by the batch while training (padding left out), by the running buffers otherwise."""

    channels: int

    def parameters(self) -> Shapes:
        return (("weight", (self.channels,)), ("bias", (self.channels,)))

    def initialise(self, _: torch.Generator) -> tuple[Tensor, ...]:
        return (torch.ones(self.channels), torch.zeros(self.channels))

    def forward(self, params: tuple[Tensor, ...], x: Tensor, at: Pass) -> tuple[Tensor, Saved]:
        weight, bias = (p.unsqueeze(1) for p in params)  # (S, 1, C)
        if not at.training:
            assert at.buffers is not None
            here = slice(at.channels_done, at.channels_done + self.channels)
            at.channels_done += self.channels
            mean = at.buffers.mean[..., here].unsqueeze(1)
            scale = torch.rsqrt(at.buffers.variance[..., here].unsqueeze(1) + BATCH_NORM_EPSILON)
            centred = x - mean
            return torch.addcmul(bias, centred, scale * weight, out=None if at.keeps else centred), None
        rows: Tensor | float = float(x.shape[1]) if at.rows is None else at.rows
        if at.mask is not None:
            x = x * at.mask
        mean = x.sum(1, keepdim=True) / rows
        centred = x - mean
        if at.mask is not None:
            centred = centred * at.mask
        variance = centred.square().sum(1, keepdim=True) / rows
        at.batch_mean.append(mean.detach().squeeze(1))
        at.batch_variance.append((variance.detach() * (rows / (rows - 1.0))).squeeze(1))
        scale = torch.rsqrt(variance + BATCH_NORM_EPSILON)  # (S, 1, C)
        return torch.addcmul(bias, centred, scale * weight), (centred, scale, at.mask, rows)

    def backward(
        self, params: tuple[Tensor, ...], saved: Saved, grad: Tensor, _: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        weight = params[0].unsqueeze(1)
        centred, scale, mask, rows = saved
        grad_bias = grad.sum(1, keepdim=True)
        grad_weight = (grad * centred).sum(1, keepdim=True).mul_(scale)
        # The batch's mean and variance move with x too: ∂x = (w·s)(g − ḡ − x̂·mean(g x̂)), x̂ = centred·s.
        slope = scale * weight
        grad_x = torch.addcmul(grad_bias * slope / -rows, grad, slope)
        grad_x.addcmul_(centred, grad_weight * slope * scale / -rows)
        if mask is not None:
            grad_x.mul_(mask)
        return grad_x, (grad_weight.squeeze(1), grad_bias.squeeze(1))


@dataclass(frozen=True)
class Dropout:
    rate: float
    width: int

    def parameters(self) -> Shapes:
        return ()

    def initialise(self, _: torch.Generator) -> tuple[Tensor, ...]:
        return ()

    def forward(self, _: tuple[Tensor, ...], x: Tensor, at: Pass) -> tuple[Tensor, Saved]:
        if not at.training or self.rate == 0.0:
            return x, None
        keep = at.keep[at.dropouts_done]  # (S, B, width)
        at.dropouts_done += 1
        # In place where no graph is kept: the layer before may need its output, but only its zeros.
        return (x * keep if x.requires_grad else x.mul_(keep)), keep

    def backward(
        self, _: tuple[Tensor, ...], keep: Saved, grad: Tensor, __: bool
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        return (grad if keep is None else grad.mul_(keep)), ()


class Layer(Protocol):
    """What a network asks of each of its layers."""

    def parameters(self) -> Shapes:
        """Names and shapes."""

    def initialise(self, generator: torch.Generator, /) -> tuple[Tensor, ...]:
        """Where they start."""

    def forward(self, params: tuple[Tensor, ...], x: Tensor, at: Pass, /) -> tuple[Tensor, Saved]:
        """(S, B, in) → (S, B, out), and what `backward` will need."""

    def backward(
        self, params: tuple[Tensor, ...], saved: Saved, grad: Tensor, needs_input: bool, /
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """The gradients of the input and of the parameters."""
