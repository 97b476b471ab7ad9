"""The registry builds the paper's networks: counts, names, and outputs and gradients equal to torch.nn's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from fedmap.algorithm.model.layers import Buffers, Linear
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.settings import PriorSettings
from fedmap.data.features import encode_features
from fedmap.errors import ModelError
from fedmap.study.models import build_model, build_network, model_of
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.reading import load_plan
from fedmap.study.plan.sections import FeatureBlock, ModelSection
from fedmap.study.plan.study_plan import StudyPlan

Groups = Sequence[tuple[str, Sequence[int]]]

EICU_FULL: Groups = (
    ("drugs", range(1411)),
    ("diagnoses", range(1411, 2097)),
    ("physiology", range(2097, 2104)),
)
EICU_SMALL: Groups = (("drugs", range(12)), ("diagnoses", range(12, 21)), ("physiology", range(21, 28)))


def block(inputs: int, outputs: int, dropout: float, batch_norm: bool = False) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Linear(inputs, outputs), nn.ReLU()]
    layers += [nn.BatchNorm1d(outputs)] * batch_norm
    layers.append(nn.Dropout(dropout))
    return layers


class Towers(nn.Module):
    """The paper's multi-modal network, written with torch.nn."""

    def __init__(self, drugs: int, diagnoses: int, physiology: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.cuts = [drugs, diagnoses, physiology]
        self.drugs = self._tower((drugs, 100, 50, 10), dropout)
        self.diagnoses = self._tower((diagnoses, 100, 50, 10), dropout)
        self.physiology = self._tower((physiology, 40, 20, 10), dropout)
        self.trunk = nn.Sequential(
            *block(15, 15, 0.0), *block(15, 10, 0.0), *block(10, 5, 0.0), nn.Linear(5, outputs)
        )

    @staticmethod
    def _tower(widths: Sequence[int], dropout: float) -> nn.Sequential:
        a, b, c, d = widths
        return nn.Sequential(
            *block(a, b, dropout), *block(b, c, dropout), *block(c, d, dropout), nn.Linear(d, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        drugs, diagnoses, physiology = torch.split(x, self.cuts, dim=1)
        parts = [self.drugs(drugs), self.diagnoses(diagnoses), self.physiology(physiology)]
        return torch.as_tensor(self.trunk(torch.cat(parts, dim=1)))


class Trunk(nn.Module):
    """A plain stack under the name the registry gives it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.trunk(x))


@dataclass(frozen=True)
class Case:
    """One architecture of the registry and the same in torch.nn."""

    settings: Callable[[float], ModelSection]
    groups: Groups
    inputs: int
    outputs: int
    reference: Callable[[float], nn.Module]
    dropout: float  # the paper's, or the plan's default

    def network(self, dropout: float) -> Network:
        return build_network(self.settings(dropout), self.groups, self.inputs, self.outputs)


def _plain(inputs: int) -> Groups:
    return (("", range(inputs)),)


CASES = {
    "cprd_survival": Case(
        lambda rate: ModelSection(name="cprd_survival", dropout=rate),
        _plain(9),
        9,
        1,
        lambda rate: Trunk(
            *block(9, 64, rate, True),
            *block(64, 32, rate, True),
            *block(32, 16, rate, True),
            nn.Linear(16, 1),
        ),
        0.1,
    ),
    "interval_iron": Case(
        lambda rate: ModelSection(name="interval_iron", dropout=rate),
        _plain(18),
        18,
        2,
        lambda rate: Trunk(*block(18, 64, rate, True), *block(64, 64, rate, True), nn.Linear(64, 2)),
        0.1,
    ),
    "eicu_mortality": Case(
        lambda rate: ModelSection(name="eicu_mortality", dropout=rate),
        EICU_SMALL,
        28,
        2,
        lambda rate: Towers(12, 9, 7, 2, rate),
        0.3,
    ),
    "mlp": Case(
        lambda rate: ModelSection(name="mlp", hidden=(11, 6), dropout=rate),
        _plain(5),
        5,
        3,
        lambda rate: Trunk(*block(5, 11, rate), *block(11, 6, rate), nn.Linear(6, 3)),
        0.1,
    ),
    "mlp with batch norm": Case(
        lambda rate: ModelSection(name="mlp", hidden=(11,), dropout=rate, batch_norm=True),
        _plain(5),
        5,
        1,
        lambda rate: Trunk(*block(5, 11, rate, True), nn.Linear(11, 1)),
        0.1,
    ),
    "linear": Case(
        lambda _: ModelSection(name="linear"), _plain(5), 5, 1, lambda _: Trunk(nn.Linear(5, 1)), 0.0
    ),
}

every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def batch_norms(module: nn.Module) -> list[nn.BatchNorm1d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d)]


def twin(case: Case, network: Network, theta: Tensor, buffers: Buffers, dropout: float = 0.0) -> nn.Module:
    """The torch.nn module with the parameters θ and the batch-norm statistics of `buffers`."""
    module = case.reference(dropout)
    module.load_state_dict(network.spec.to_mapping(theta), strict=False)
    for layer, mean, variance, count in zip(
        batch_norms(module),
        torch.split(buffers.mean, list(network.channels)),
        torch.split(buffers.variance, list(network.channels)),
        buffers.count,
        strict=True,
    ):
        layer.load_state_dict(
            {"running_mean": mean, "running_var": variance, "num_batches_tracked": count}, strict=False
        )
    return module


def some_buffers(network: Network, seed: int) -> Buffers:
    generator = torch.Generator().manual_seed(seed)
    channels = sum(network.channels)
    return Buffers(
        torch.randn(channels, generator=generator),
        0.5 + torch.rand(channels, generator=generator),
        torch.full((len(network.channels),), 7),
    )


def some_rows(case: Case, rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, case.inputs, generator=torch.Generator().manual_seed(seed))


def some_theta(network: Network, seed: int) -> Tensor:
    """A start moved off its symmetric points: batch-norm weights of one and biases of nought hide errors."""
    theta = network.initialise(seed)
    return theta + 0.05 * torch.randn(len(theta), generator=torch.Generator().manual_seed(seed + 1))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# The paper's sizes


def test_the_eicu_network_of_the_paper_has_223_002_parameters() -> None:
    network = build_network(ModelSection(name="eicu_mortality"), EICU_FULL, 2104, 2)
    assert network.spec.size == 223_002
    module = Towers(1411, 686, 7, 2, 0.3)
    assert sum(parameter.numel() for parameter in module.parameters()) == 223_002


def test_the_learned_penalty_of_the_eicu_network_has_28_6_million_parameters() -> None:
    network = build_network(ModelSection(name="eicu_mortality"), EICU_FULL, 2104, 2)
    size = ConvexNetwork(network.spec, PriorSettings()).spec.size
    # 32 tensors: 64 weights for each number of θ and of μ, then biases, 32 × 64 and 32 beside each tensor.
    assert size == 2 * 64 * 223_002 + 32 * (64 + 32 * 64 + 32 + 32) == 28_613_888


def test_the_survival_network_of_the_paper_has_its_parameters() -> None:
    network = build_network(ModelSection(name="cprd_survival"), _plain(9), 9, 1)
    assert network.spec.size == (9 * 64 + 64 + 128) + (64 * 32 + 32 + 64) + (32 * 16 + 16 + 32) + (16 + 1)
    assert network.channels == (64, 32, 16)


def test_the_iron_network_of_the_paper_has_its_parameters() -> None:
    network = build_network(ModelSection(name="interval_iron"), _plain(18), 18, 2)
    assert network.spec.size == 5_762
    assert network.channels == (64, 64)


@pytest.mark.parametrize(
    ("name", "groups", "inputs", "rates"),
    [
        ("cprd_survival", _plain(9), 9, [0.1] * 3),
        ("interval_iron", _plain(18), 18, [0.1] * 2),
        ("eicu_mortality", EICU_SMALL, 28, [0.3] * 9),
        ("mlp", _plain(5), 5, [0.1] * 2),
        ("linear", _plain(5), 5, []),
    ],
)
def test_each_network_has_the_dropout_of_the_paper_by_default(
    name: str, groups: Groups, inputs: int, rates: list[float]
) -> None:
    network = build_network(ModelSection.model_validate({"name": name}), groups, inputs, 2)
    assert [layer.rate for layer in network.dropouts] == rates
    widths = [layer.outputs for _, layer in network.named_layers if isinstance(layer, Linear)]
    assert [layer.width for layer in network.dropouts] == [w for w in widths if w > 5][: len(rates)]


# Parity with torch.nn


@every_model
@pytest.mark.parametrize("with_dropout", [True, False])
def test_names_and_shapes_are_those_of_the_same_torch_modules(case: Case, with_dropout: bool) -> None:
    rate = case.dropout if with_dropout else 0.0
    named = dict(case.reference(rate).named_parameters())
    spec = case.network(rate).spec
    assert spec.names == tuple(named)
    assert spec.shapes == tuple(tuple(parameter.shape) for parameter in named.values())


@every_model
def test_predictions_are_torchs_in_evaluation_mode(case: Case) -> None:
    network = case.network(case.dropout)
    theta, buffers = some_theta(network, 3), some_buffers(network, 5)
    x = some_rows(case, 17)
    before = x.clone()
    module = twin(case, network, theta, buffers, case.dropout).eval()
    with torch.no_grad():
        assert_close(network.predict_one(theta, buffers, x), module(x))
    assert torch.equal(x, before), "a pass changed its input"


# Start


def test_batch_norm_starts_as_the_identity() -> None:
    network = CASES["cprd_survival"].network(0.1)
    named = network.spec.to_mapping(network.initialise(12))
    assert all(bool((named[f"trunk.{i}.weight"] == 1).all()) for i in (2, 6, 10))
    assert all(bool((named[f"trunk.{i}.bias"] == 0).all()) for i in (2, 6, 10))
    buffers = network.initial_buffers()
    assert bool((buffers.mean == 0).all())
    assert bool((buffers.variance == 1).all())
    assert buffers.count.tolist() == [0, 0, 0]


# Refusals


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(_plain(28), id="no groups"),
        pytest.param(EICU_SMALL[:2], id="no physiology"),
        pytest.param((*EICU_SMALL, ("", range(28, 30))), id="some features without a group"),
        pytest.param((*EICU_SMALL, ("imaging", range(28, 30))), id="a fourth group"),
        pytest.param((), id="nothing at all"),
    ],
)
def test_feature_groups_that_do_not_fit_the_towers_are_refused(groups: Groups) -> None:
    with pytest.raises(ModelError, match="drugs, diagnoses, physiology") as refused:
        build_network(ModelSection(name="eicu_mortality"), groups, 30, 2)
    assert "group" in refused.value.hint


@pytest.mark.parametrize("columns", [(12, 14, 13), (12, 13, 15), (20, 19, 18)])
def test_a_group_whose_columns_are_not_next_to_each_other_is_refused_by_name(
    columns: tuple[int, ...],
) -> None:
    groups = (EICU_SMALL[0], ("diagnoses", columns), EICU_SMALL[2])
    with pytest.raises(ModelError, match="group diagnoses") as refused:
        build_network(ModelSection(name="eicu_mortality"), groups, 28, 2)
    assert "together" in refused.value.hint


def test_groups_may_come_in_any_order_and_the_towers_keep_theirs() -> None:
    shuffled = (("physiology", range(7)), ("drugs", range(7, 19)), ("diagnoses", range(19, 28)))
    network = build_network(ModelSection(name="eicu_mortality"), shuffled, 28, 2)
    assert [branch.name for branch in network.branches] == ["drugs", "diagnoses", "physiology"]
    straight = CASES["eicu_mortality"].network(0.3)
    theta = some_theta(straight, 1)
    x = some_rows(CASES["eicu_mortality"], 4)
    moved = torch.cat([x[:, 21:], x[:, :21]], dim=1)
    buffers = straight.initial_buffers()
    assert network.spec == straight.spec
    assert_close(network.predict_one(theta, buffers, moved), straight.predict_one(theta, buffers, x))


PLANS = sorted((Path(__file__).parents[2] / "lab" / "fedmap_lab" / "plans").glob("*.toml"))


def invented_frame(plan: StudyPlan) -> pd.DataFrame:
    columns: dict[str, object] = {}
    for feature in plan.features:
        if isinstance(feature, FeatureBlock):
            columns |= {f"{feature.prefix}{i:05d}": np.zeros(2) for i in range(feature.columns)}
        elif feature.kind == "category":
            columns[feature.name] = [feature.categories[0], feature.categories[-1]]
        else:
            columns[feature.name] = np.zeros(2)
    return pd.DataFrame(columns)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_planned_inputs_equal_the_layout_of_a_loaded_site(path: Path) -> None:
    plan = load_plan(path)
    layout = encode_features(invented_frame(plan), plan.features).layout
    inputs = planned_inputs(plan)
    assert inputs.count == len(layout.names)
    assert inputs.scaled == layout.scaled
    assert inputs.groups == layout.groups
    assert model_of(plan) == build_model(plan, layout.groups, len(layout.names))
