"""The prediction network is the house's forward pass, for every architecture of the registry."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import BatchNorm, Buffers, Linear, Relu
from fedmap.algorithm.model.network import Branch, Network
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError
from fedmap.scoring.evaluation import outputs
from fedmap.study.models import model_of
from fedmap.study.plan import load_plan
from fedmap_site.predict.network import ROWS_AT_ONCE, PredictionNetwork

PLANS = Path(__file__).resolve().parents[2] / "lab" / "fedmap_lab" / "plans"
ODD = Network(
    5,
    2,
    (
        Branch("first", 0, 2, (BatchNorm(2), Linear(2, 3))),
        Branch("second", 2, 5, (Linear(3, 4), BatchNorm(4), Relu())),
    ),
    (BatchNorm(7), Linear(7, 2), BatchNorm(2)),
)
"""Layers in an order that no plan asks for today."""


def parameters_of(network: Network, seed: int) -> SiteParameters:
    torch.manual_seed(seed)
    channels = sum(network.channels)
    counts = network.initial_buffers().count
    # Tiny variances and large means are what folding constants together would not survive.
    variance = torch.rand(channels) ** 8
    return SiteParameters(network.initialise(seed), Buffers(3 * torch.randn(channels), variance, counts))


@pytest.mark.parametrize("name", ["cprd", "eicu", "interval", "uci-heart", "odd"])
def test_outputs_are_those_of_the_evaluation(name: str) -> None:
    model = Model(ODD, "categorical") if name == "odd" else model_of(load_plan(PLANS / f"{name}.toml"))
    network = model.network
    parameters = parameters_of(network, 4)
    scaler = Scaler(1000 * torch.randn(network.inputs), torch.rand(network.inputs) + 0.01)
    rows = 300 if name == "eicu" else ROWS_AT_ONCE + 700
    features = scaler.mean + scaler.deviation * torch.randn(rows, network.inputs)
    before = features.clone()
    expected = outputs(model, parameters, scaler.apply(features))
    found = PredictionNetwork(network, parameters, scaler).outputs(features)
    assert torch.equal(found, expected)
    assert torch.equal(features, before), "the caller's rows were written over"


def test_rows_of_another_width_are_refused() -> None:
    network = model_of(load_plan(PLANS / "uci-heart.toml")).network
    ready = PredictionNetwork(
        network, parameters_of(network, 1), Scaler(torch.zeros(network.inputs), torch.ones(network.inputs))
    )
    with pytest.raises(ModelError):
        ready.outputs(torch.zeros(3, network.inputs + 1))


def test_an_output_that_is_no_number_is_an_error_and_no_prediction() -> None:
    network = model_of(load_plan(PLANS / "uci-heart.toml")).network
    ready = PredictionNetwork(
        network, parameters_of(network, 1), Scaler(torch.zeros(network.inputs), torch.ones(network.inputs))
    )
    with pytest.raises(ModelError):
        ready.outputs(torch.full((3, network.inputs), torch.inf))
