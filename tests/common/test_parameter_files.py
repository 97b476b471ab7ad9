"""Files of tensors: bit for bit there and back, and whatever does not fit the model is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.model.layers import BatchNorm, Buffers, Linear, Relu
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.pooling.statistics import FeatureStatistics, Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.algorithm.settings import PriorSettings
from fedmap.errors import ModelError, StorageError
from fedmap.study.tensors.parameter_files import (
    PriorFile,
    decode_own_model,
    decode_parameters,
    decode_prior,
    decode_statistics,
    decode_theta,
    encode_own_model,
    encode_parameters,
    encode_prior,
    encode_statistics,
    encode_theta,
    parameters_norm,
)

NETWORK = Network(3, 1, (), (Linear(3, 4), Relu(), BatchNorm(4), Linear(4, 1)))
PLAIN = Network(3, 1, (), (Linear(3, 1),))
SETTINGS = PriorSettings(hidden=(4, 3))
Edit = Callable[[dict[str, Tensor]], None]


def parameters() -> SiteParameters:
    buffers = Buffers(torch.randn(4), torch.rand(4), torch.tensor([7]))
    return SiteParameters(NETWORK.initialise(1), buffers)


def edited(edit: Edit, data: bytes | None = None) -> bytes:
    named = safetensors.torch.load(encode_parameters(NETWORK, parameters()) if data is None else data)
    edit(named)
    return bytes(safetensors.torch.save(named))


def with_header(data: bytes, edit: Callable[[dict[str, object]], None]) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def test_parameters_come_back_bit_for_bit_from_bytes_and_from_a_file(tmp_path: Path) -> None:
    own = parameters()
    data = encode_parameters(NETWORK, own)
    (tmp_path / "x").write_bytes(data)
    for read in (decode_parameters(NETWORK, data), decode_parameters(NETWORK, tmp_path / "x")):
        assert torch.equal(read.theta, own.theta)
        assert torch.equal(read.buffers.mean, own.buffers.mean)
        assert torch.equal(read.buffers.variance, own.buffers.variance)
        assert torch.equal(read.buffers.count, own.buffers.count)


def test_the_same_value_always_gives_the_same_bytes() -> None:
    own = parameters()
    again = decode_parameters(NETWORK, encode_parameters(NETWORK, own))
    assert encode_parameters(NETWORK, own) == encode_parameters(NETWORK, again)


def test_a_network_without_batch_norm_has_no_buffers_in_its_file() -> None:
    own = SiteParameters(PLAIN.initialise(1), PLAIN.initial_buffers())
    read = decode_parameters(PLAIN, encode_parameters(PLAIN, own))
    assert torch.equal(read.theta, own.theta)
    assert read.buffers.mean.numel() == 0


def test_what_is_read_can_be_trained_on_without_touching_the_file() -> None:
    data = encode_parameters(NETWORK, parameters())
    decode_parameters(NETWORK, data).theta.zero_()
    assert decode_parameters(NETWORK, data).theta.any()


@pytest.mark.parametrize("convex", [True, False])
def test_prior_and_scaler_come_back_bit_for_bit(convex: bool) -> None:
    settings = PriorSettings(hidden=(4, 3), convex=convex)
    prior = initial_prior(NETWORK, settings, NETWORK.initialise(2))
    scaler = Scaler(torch.randn(3), torch.rand(3) + 0.1)
    read = decode_prior(NETWORK, settings, encode_prior(NETWORK, settings, PriorFile(prior, scaler)))
    assert torch.equal(read.prior.mu, prior.mu)
    assert torch.equal(read.prior.psi, prior.psi)
    assert torch.equal(read.prior.buffers.variance, prior.buffers.variance)
    assert torch.equal(read.scaler.mean, scaler.mean)
    assert torch.equal(read.scaler.deviation, scaler.deviation)


def test_an_own_model_keeps_the_multiplier_of_a_consensus_round_and_an_update_has_none() -> None:
    multiplier = NETWORK.initialise(5)
    file = encode_own_model(NETWORK, OwnModel(parameters(), multiplier))
    own = decode_own_model(NETWORK, file)
    assert own.multiplier is not None
    assert torch.equal(own.multiplier, multiplier)
    assert torch.equal(own.parameters.theta, parameters().theta)
    without = decode_own_model(NETWORK, encode_own_model(NETWORK, OwnModel(parameters())))
    assert without.multiplier is None
    with pytest.raises(ModelError, match="multiplier"):
        decode_parameters(NETWORK, file)


def test_a_multiplier_that_lacks_a_tensor_is_refused() -> None:
    file = encode_own_model(NETWORK, OwnModel(parameters(), NETWORK.initialise(5)))
    name = f"multiplier.{NETWORK.spec.names[0]}"
    with pytest.raises(ModelError, match=name):
        decode_own_model(NETWORK, edited(lambda named: named.__delitem__(name), file))


def test_theta_and_statistics_come_back_bit_for_bit() -> None:
    theta = NETWORK.initialise(3)
    assert torch.equal(decode_theta(NETWORK, encode_theta(NETWORK, theta)), theta)
    mean, m2 = torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    statistics = decode_statistics(encode_statistics(FeatureStatistics(9, mean, m2)), 9, 3)
    assert statistics.rows == 9
    assert torch.equal(statistics.mean, mean)
    assert torch.equal(statistics.m2, m2)


def swap(named: dict[str, Tensor]) -> None:
    named["trunk.0.weight"] = named["trunk.0.weight"].T.contiguous()


def spoil(value: float, name: str = "trunk.0.bias") -> Edit:
    def edit(named: dict[str, Tensor]) -> None:
        named[name][0] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda n: n.pop("trunk.0.bias"), r"lacks 'trunk\.0\.bias'"),
        (lambda n: n.update(note=torch.zeros(1)), "adds 'note'"),
        (lambda n: n.update({"trunk.0.biases": n.pop("trunk.0.bias")}), "lacks .* and adds"),
        (lambda n: n.pop("buffers.count"), r"buffers\.count"),
        (swap, r"trunk\.0\.weight is not of shape \(4, 3\)"),
        (lambda n: n.update({"trunk.0.bias": n["trunk.0.bias"].double()}), "not of type F32"),
        (lambda n: n.update({"trunk.0.bias": n["trunk.0.bias"].half()}), "not of type F32"),
        (lambda n: n.update({"buffers.count": n["buffers.count"].int()}), "not of type I64"),
        (spoil(float("nan")), r"trunk\.0\.bias holds a value that is not finite"),
        (spoil(float("inf")), "not finite"),
        (spoil(-1.0, "buffers.variance"), r"buffers\.variance is negative"),
        (spoil(-1, "buffers.count"), r"buffers\.count is negative"),
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused_by_name(edit: Edit, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        decode_parameters(NETWORK, edited(edit))


@pytest.mark.parametrize(
    "data", [b"", b"1234567", b"\0" * 8, b"\xff" * 100, b"\x02\0\0\0\0\0\0\0[]", b"PK\3\4" * 99]
)
def test_bytes_that_are_no_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        decode_parameters(NETWORK, data)


@pytest.mark.parametrize("cut", [1, 4, 100])
def test_a_file_cut_off_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(ModelError):
        decode_parameters(NETWORK, encode_parameters(NETWORK, parameters())[:-cut])


def test_bytes_behind_the_tensors_are_refused() -> None:
    with pytest.raises(ModelError, match="belong to no tensor"):
        decode_parameters(NETWORK, encode_parameters(NETWORK, parameters()) + b"patient")


def test_free_text_in_the_metadata_is_refused() -> None:
    data = with_header(
        encode_parameters(NETWORK, parameters()), lambda h: h.update(__metadata__={"who": "patient"})
    )
    with pytest.raises(ModelError, match="__metadata__"):
        decode_parameters(NETWORK, data)


@pytest.mark.parametrize(
    "offsets", [[0, 16], [-16, 0], [16, 0], [0, 10**12], ["0", "16"], [0.0, 16.0], [0], None]
)
def test_offsets_that_overlap_or_lie_outside_are_refused(offsets: object) -> None:
    def edit(header: dict[str, object]) -> None:
        entry = header["trunk.0.bias"]
        assert isinstance(entry, dict)
        entry["data_offsets"] = offsets

    data = encode_parameters(NETWORK, parameters())
    with pytest.raises(ModelError):
        decode_parameters(NETWORK, with_header(data, edit))


def test_another_order_of_the_tensors_means_the_same() -> None:
    own = parameters()
    data = encode_parameters(NETWORK, own)

    def turn(header: dict[str, object]) -> None:
        entries = list(header.items())[::-1]
        header.clear()
        header.update(entries)

    assert torch.equal(decode_parameters(NETWORK, with_header(data, turn)).theta, own.theta)


def test_a_scaler_that_divides_by_zero_is_refused() -> None:
    prior: Prior = initial_prior(NETWORK, SETTINGS, NETWORK.initialise(2))
    data = encode_prior(NETWORK, SETTINGS, PriorFile(prior, Scaler(torch.zeros(3), torch.zeros(3))))
    with pytest.raises(ModelError, match="deviation"):
        decode_prior(NETWORK, SETTINGS, data)


def test_negative_sums_are_refused() -> None:
    statistics = FeatureStatistics(5, torch.zeros(3).double(), -torch.ones(3).double())
    with pytest.raises(ModelError, match="m2 is negative"):
        decode_statistics(encode_statistics(statistics), 5, 3)


# Larger than one piece, and not a multiple of it.
LARGE = Network(700, 1, (), (Linear(700, 601), BatchNorm(601), Linear(601, 1)))


def large_file(folder: Path, theta: torch.Tensor | None = None, variance: float = 1.0) -> Path:
    theta = LARGE.initialise(3) if theta is None else theta
    buffers = Buffers(torch.zeros(601), torch.full((601,), variance), torch.tensor([4]))
    path = folder / "parameters"
    path.write_bytes(encode_parameters(LARGE, SiteParameters(theta, buffers)))
    return path


def test_the_norm_is_that_of_all_parameters_and_of_no_buffer(tmp_path: Path) -> None:
    theta = LARGE.initialise(3)
    expected = float(torch.linalg.vector_norm(theta.double()))
    assert math.isclose(parameters_norm(LARGE, large_file(tmp_path, theta)), expected, rel_tol=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 300_000, -1])
def test_one_value_that_is_not_finite_refuses_the_file_wherever_it_is(
    tmp_path: Path, value: float, place: int
) -> None:
    theta = LARGE.initialise(3)
    theta[place] = value
    with pytest.raises(ModelError, match="not finite"):
        parameters_norm(LARGE, large_file(tmp_path, theta))


def test_the_largest_finite_values_are_taken_for_what_they_are(tmp_path: Path) -> None:
    theta = torch.full_like(LARGE.initialise(3), torch.finfo(torch.float32).max)
    assert math.isfinite(parameters_norm(LARGE, large_file(tmp_path, theta)))


def test_a_cut_or_lengthened_file_is_refused(tmp_path: Path) -> None:
    path = large_file(tmp_path)
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"\0", whole[:100], whole[:4], b""):
        path.write_bytes(data)
        with pytest.raises(ModelError):
            parameters_norm(LARGE, path)


def test_a_file_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    for read in (decode_parameters, parameters_norm):
        with pytest.raises(StorageError):
            read(NETWORK, tmp_path / "gone")
