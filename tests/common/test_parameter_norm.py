"""The norm of a file of parameters, taken piece by piece: same number, same refusals as a whole reading."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.model.layers import BatchNorm, Buffers, Linear
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError, StorageError
from fedmap.study.tensors.parameter_files import encode_parameters, parameters_norm

# Larger than one piece, and not a multiple of it.
NETWORK = Network(700, 1, (), (Linear(700, 601), BatchNorm(601), Linear(601, 1)))


def _file(folder: Path, theta: torch.Tensor | None = None, variance: float = 1.0) -> Path:
    theta = NETWORK.initialise(3) if theta is None else theta
    buffers = Buffers(torch.zeros(601), torch.full((601,), variance), torch.tensor([4]))
    path = folder / "parameters"
    path.write_bytes(encode_parameters(NETWORK, SiteParameters(theta, buffers)))
    return path


def test_the_norm_is_that_of_all_parameters_and_of_no_buffer(tmp_path: Path) -> None:
    theta = NETWORK.initialise(3)
    expected = float(torch.linalg.vector_norm(theta.double()))
    assert math.isclose(parameters_norm(NETWORK, _file(tmp_path, theta)), expected, rel_tol=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 300_000, -1])
def test_one_value_that_is_not_finite_refuses_the_file_wherever_it_is(
    tmp_path: Path, value: float, place: int
) -> None:
    theta = NETWORK.initialise(3)
    theta[place] = value
    with pytest.raises(ModelError, match="not finite"):
        parameters_norm(NETWORK, _file(tmp_path, theta))


def test_the_largest_finite_values_are_taken_for_what_they_are(tmp_path: Path) -> None:
    theta = torch.full_like(NETWORK.initialise(3), torch.finfo(torch.float32).max)
    assert math.isfinite(parameters_norm(NETWORK, _file(tmp_path, theta)))


def test_a_negative_variance_refuses_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"buffers\.variance is negative"):
        parameters_norm(NETWORK, _file(tmp_path, variance=-1.0))


def test_a_cut_or_lengthened_file_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path)
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"\0", whole[:100], whole[:4], b""):
        path.write_bytes(data)
        with pytest.raises(ModelError):
            parameters_norm(NETWORK, path)


def test_a_file_that_is_gone_is_a_fault_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        parameters_norm(NETWORK, tmp_path / "gone")
