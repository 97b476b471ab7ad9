"""The first model of a study: fresh, always the same for a seed, and with units that a gradient can pass."""

from __future__ import annotations

import pytest
import torch

from fedmap.algorithm.model.layers import BatchNorm, Linear, Relu
from fedmap.algorithm.model.network import Branch, Network
from fedmap.algorithm.prior.values import initial_parameters
from fedmap.algorithm.seeding import derive_seed

NARROW = Network(4, 2, (), (Linear(4, 10), Relu(), Linear(10, 5), Relu(), Linear(5, 2)))
TOWERS = Network(
    4,
    2,
    (Branch("one", 0, 2, (Linear(2, 5), Relu())), Branch("two", 2, 4, (Linear(2, 5), Relu()))),
    (Linear(10, 2),),
)
WIDE = Network(4, 2, (), (Linear(4, 64), Relu(), BatchNorm(64), Linear(64, 2)))
LINEAR = Network(4, 1, (), (Linear(4, 1),))
LONELY = Network(4, 1, (), (Linear(4, 1), Relu(), Linear(1, 1)))


def first_draw(network: Network, seed: int) -> torch.Tensor:
    return network.initialise(derive_seed(seed, "initial-model", "north"))


@pytest.mark.parametrize(
    ("biases", "awake"), [([1, -1, -1], False), ([-1, -1, -1], False), ([1, -1, 2], True), ([1, 1, 1], True)]
)
def test_a_layer_is_awake_with_two_units_above_zero_for_the_mean_patient(
    biases: list[float], awake: bool
) -> None:
    network = Network(2, 1, (), (Linear(2, 3), Relu(), Linear(3, 1)))
    theta = torch.cat([torch.ones(6), torch.tensor(biases, dtype=torch.float32), torch.ones(4)])
    assert network.is_awake(theta) is awake


@pytest.mark.parametrize("network", [NARROW, TOWERS], ids=["narrow", "towers"])
def test_a_first_model_that_is_asleep_is_drawn_again(network: Network) -> None:
    asleep = [seed for seed in range(60) if not network.is_awake(first_draw(network, seed))]
    assert 3 <= len(asleep) <= 40, "the test would show nothing"
    for seed in range(60):
        theta = initial_parameters(network, seed, "north")
        assert network.is_awake(theta)
        assert torch.equal(theta, first_draw(network, seed)) is (seed not in asleep)
        assert torch.equal(theta, initial_parameters(network, seed, "north"))


@pytest.mark.parametrize("network", [WIDE, LINEAR], ids=["wide", "linear"])
def test_where_nothing_can_be_asleep_the_first_draw_stays(network: Network) -> None:
    for seed in range(20):
        assert torch.equal(initial_parameters(network, seed, "north"), first_draw(network, seed))


def test_a_layer_of_a_single_unit_is_awake_with_that_one() -> None:
    assert all(LONELY.is_awake(initial_parameters(LONELY, seed, "north")) for seed in range(20))


def test_a_network_that_is_never_awake_still_has_a_first_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "is_awake", lambda *_: False)
    assert bool(torch.isfinite(initial_parameters(NARROW, 0, "north")).all())
