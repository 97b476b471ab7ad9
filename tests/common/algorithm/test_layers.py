"""Every closed-form backward pass against autograd, padding included, and batch-norm against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.model.layers import BatchNorm, Buffers, Dropout, Layer, Linear, Pass, Relu
from fedmap.algorithm.model.likelihood import (
    LikelihoodName,
    Outcome,
    negative_log_likelihood,
    output_gradient,
    risk_sets,
)
from fedmap.algorithm.model.network import Branch, Network
from tests.common.algorithm.examples import make_model

SITES, WIDTH, INPUTS = 3, 6, 4
FULL, PADDED = (6, 6, 6), (6, 2, 4)  # true rows per site
LIKELIHOODS: tuple[LikelihoodName, ...] = ("bernoulli", "categorical", "cox")


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def _weight(rows: tuple[int, ...]) -> Tensor:
    return (torch.arange(WIDTH) < torch.tensor(rows)[:, None]).double()


def _pass(rows: tuple[int, ...], keep: tuple[Tensor, ...] = ()) -> Pass:
    if rows == FULL:
        return Pass(training=True, keep=keep)
    counts = torch.tensor(rows, dtype=torch.float64).view(-1, 1, 1)
    return Pass(training=True, rows=counts, mask=_weight(rows).unsqueeze(-1), keep=keep)


def _keep(dropouts: tuple[Dropout, ...], seed: int) -> tuple[Tensor, ...]:
    draw = np.random.default_rng(seed)
    return tuple(
        torch.from_numpy((draw.random((SITES, WIDTH, d.width)) > d.rate) / (1 - d.rate)) for d in dropouts
    )


def _outcome(likelihood: LikelihoodName, rows: tuple[int, ...], seed: int) -> Outcome:
    draw = np.random.default_rng(seed)
    if likelihood == "cox":
        time = -np.sort(-draw.integers(1, 4, (SITES, WIDTH)).astype(np.float64), axis=1)
        return Outcome(_weight(rows), risk=risk_sets(time, draw.random((SITES, WIDTH)) < 0.7, np.array(rows)))
    classes = 2 if likelihood == "bernoulli" else 3
    return Outcome(_weight(rows), label=torch.from_numpy(draw.integers(0, classes, (SITES, WIDTH))))


def test_a_first_layer_does_not_compute_the_gradient_of_the_features() -> None:
    layer, x = Linear(INPUTS, 3), _draw(1, SITES, WIDTH, INPUTS)
    params = (_draw(2, SITES, 3, INPUTS), _draw(3, SITES, 3))
    assert layer.backward(params, x, _draw(4, SITES, WIDTH, 3), False)[0] is None


def _reference_layers(
    layers: tuple[Layer, ...], params: list[Tensor], x: Tensor, keep: list[Tensor]
) -> Tensor:
    """One site's true rows (rows, in) by torch.nn.functional, nothing in place."""
    for layer in layers:
        own = [params.pop(0) for _ in layer.parameters()]
        match layer:
            case Linear():
                x = F.linear(x, own[0], own[1])
            case Relu():
                x = F.relu(x)
            case BatchNorm():
                x = F.batch_norm(x, None, None, own[0], own[1], training=True)
            case Dropout(rate=rate) if rate > 0:
                x = x * keep.pop(0)[: len(x)]
            case Dropout():
                pass
    return x


def _reference(
    network: Network, theta: Tensor, x: Tensor, rows: tuple[int, ...], keep: tuple[Tensor, ...]
) -> Tensor:
    """All sites one by one on their true rows, zeros where there is padding."""
    outputs: list[Tensor] = []
    for site, count in enumerate(rows):
        params = list(network.spec.views(theta[site]))
        masks = [mask[site] for mask in keep]
        h = x[site, :count]
        if network.branches:
            towers = [
                _reference_layers(b.layers, params, h[:, b.start : b.stop], masks) for b in network.branches
            ]
            h = torch.cat(towers, dim=1)
        outputs.append(
            F.pad(_reference_layers(network.trunk, params, h, masks), (0, 0, 0, x.shape[1] - count))
        )
    return torch.stack(outputs)


def _networks(outputs: int) -> dict[str, Network]:
    plain = (Linear(4, 5), Relu(), Linear(5, outputs))
    thinned = (Linear(4, 5), Relu(), Dropout(0.3, 5), Linear(5, 3), Relu(), Dropout(0.5, 3))
    normed = (Linear(4, 5), Relu(), BatchNorm(5), Dropout(0.3, 5), Linear(5, 4), BatchNorm(4), Relu())
    left = Branch("left", 0, 3, (Linear(3, 5), Relu(), BatchNorm(5), Dropout(0.2, 5), Linear(5, 2)))
    middle = Branch("middle", 1, 2, (Linear(1, 3), Relu()))
    right = Branch("right", 3, 4, (BatchNorm(1), Linear(1, 1)))
    trunk = (Linear(6, 4), Relu(), BatchNorm(4), Dropout(0.0, 4), Linear(4, outputs))
    return {
        "linear": Network(4, outputs, (), (Linear(4, outputs),)),
        "mlp": Network(4, outputs, (), plain),
        "mlp with dropout": Network(4, outputs, (), (*thinned, Linear(3, outputs))),
        "batch norm and dropout": Network(4, outputs, (), (*normed, Linear(4, outputs))),
        "branches": Network(4, outputs, (left, middle, right), trunk),
    }


NETWORKS = ("linear", "mlp", "mlp with dropout", "batch norm and dropout", "branches")


@pytest.mark.parametrize("rows", [FULL, PADDED], ids=["full", "padded"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("source", ["closed form", "autograd"])
def test_the_gradient_of_a_network_is_that_of_plain_torch_on_true_rows(
    name: str, likelihood: LikelihoodName, rows: tuple[int, ...], source: str
) -> None:
    network = _networks(3 if likelihood == "categorical" else 1)[name]
    x = _draw(1, SITES, WIDTH, 4)
    outcome = _outcome(likelihood, rows, 7)
    keep = _keep(network.dropouts, 3)
    leaf = _draw(2, SITES, network.spec.size).requires_grad_()
    outputs = _reference(network, leaf, x, rows, keep)
    loss = negative_log_likelihood(likelihood, outputs, outcome)
    (expected,) = torch.autograd.grad(loss.sum(), leaf)

    theta = leaf.detach().clone()
    if source == "autograd":
        theta.requires_grad_()
    params = network.spec.views(theta)
    found, trace = network.forward(params, x.clone(), _pass(rows, keep))
    true = _weight(rows).unsqueeze(-1)
    assert torch.allclose(found * true, outputs * true, rtol=1e-9, atol=1e-10)
    if source == "autograd":
        loss = negative_log_likelihood(likelihood, found, outcome)
        (gradient,) = torch.autograd.grad(loss.sum(), theta)
    else:
        grads = network.backward(params, trace, output_gradient(likelihood, found, outcome))
        gradient = network.spec.flatten(grads, lead=1)
    assert torch.allclose(gradient, expected, rtol=1e-8, atol=1e-9)


@given(st.sampled_from(LIKELIHOODS), st.tuples(*[st.integers(1, WIDTH)] * SITES), st.integers(0, 999))
def test_the_output_gradient_is_that_of_autograd(
    likelihood: LikelihoodName, rows: tuple[int, ...], seed: int
) -> None:
    outputs = (3 * _draw(seed, SITES, WIDTH, 3 if likelihood == "categorical" else 1)).requires_grad_()
    outcome = _outcome(likelihood, rows, seed)
    loss = negative_log_likelihood(likelihood, outputs, outcome)
    (expected,) = torch.autograd.grad(loss.sum(), outputs)
    found = output_gradient(likelihood, outputs.detach(), outcome)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)
    assert not bool((found * (1 - _weight(rows).unsqueeze(-1))).any()), "padding has no gradient"


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("garbage", [-2000.0, 2000.0])
def test_padding_changes_nothing_however_large_its_outputs(
    likelihood: LikelihoodName, garbage: float
) -> None:
    """Padding rows see real features under weight 0, so their outputs can be anything."""
    outputs = _draw(0, SITES, WIDTH, 3 if likelihood == "categorical" else 1)
    outcome = _outcome(likelihood, PADDED, 0)
    dirty = torch.where(_weight(PADDED).unsqueeze(-1) > 0, outputs, garbage)
    clean = negative_log_likelihood(likelihood, outputs, outcome)
    assert torch.equal(negative_log_likelihood(likelihood, dirty, outcome), clean)
    gradient = output_gradient(likelihood, dirty, outcome)
    assert torch.equal(gradient, output_gradient(likelihood, outputs, outcome))


@pytest.mark.parametrize("rows", [FULL, PADDED], ids=["full", "padded"])
def test_running_statistics_equal_those_of_torchs_batch_norm(rows: tuple[int, ...]) -> None:
    layer = BatchNorm(INPUTS)
    network = Network(INPUTS, INPUTS, (), (layer,))
    fresh = network.initial_buffers()
    buffers = Buffers(*(part.expand(SITES, -1).clone() for part in (fresh.mean, fresh.variance, fresh.count)))
    theta = torch.cat([1 + 0.1 * _draw(0, SITES, INPUTS), _draw(1, SITES, INPUTS)], dim=1).float()
    torchs = [torch.nn.BatchNorm1d(INPUTS) for _ in range(SITES)]
    for site, module in enumerate(torchs):
        torch.nn.utils.vector_to_parameters(theta[site], module.parameters())
    for step in range(7):
        x = (2 + 3 * _draw(step, SITES, WIDTH, INPUTS)).float()
        at = _pass(rows)
        if at.rows is not None and at.mask is not None:
            at.rows, at.mask = at.rows.float(), at.mask.float()
        out, _ = network.forward(network.spec.views(theta), x.clone(), at)
        buffers = network.moved_buffers(buffers, at)
        for site, (module, count) in enumerate(zip(torchs, rows, strict=True)):
            assert torch.allclose(out[site, :count], module(x[site, :count]), atol=1e-5)
    for site, module in enumerate(torchs):
        assert module.running_mean is not None
        assert module.running_var is not None
        assert module.num_batches_tracked is not None
        assert torch.allclose(buffers.mean[site], module.running_mean, rtol=1e-5, atol=1e-6)
        assert torch.allclose(buffers.variance[site], module.running_var, rtol=1e-5, atol=1e-6)
        assert int(buffers.count[site]) == int(module.num_batches_tracked)

    x = _draw(99, 5, INPUTS).float()
    for site, module in enumerate(torchs):
        own = Buffers(buffers.mean[site], buffers.variance[site], buffers.count[site])
        assert torch.allclose(network.predict_one(theta[site], own, x), module.eval()(x), atol=1e-5)


def test_a_fresh_linear_layer_is_uniform_within_torchs_bound() -> None:
    weight, bias = Linear(16, 500).initialise(torch.Generator().manual_seed(0))
    assert float(weight.abs().max()) <= 0.25
    assert float(bias.abs().max()) <= 0.25
    assert float(weight.std()) == pytest.approx(0.5 / 12**0.5, rel=0.02)


def test_a_fresh_model_depends_on_the_seed_only() -> None:
    network = make_model("bernoulli").network
    assert torch.equal(network.initialise(4), network.initialise(4))
    assert not torch.equal(network.initialise(4), network.initialise(5))
