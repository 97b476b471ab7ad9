"""The seeded linear map before the convex network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.prior.sketch import Sketch

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**63)


@st.composite
def sketches(draw: st.DrawFn) -> Sketch:
    return Sketch(draw(SIZES), draw(st.integers(0, 5)), draw(SEEDS))


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def _joined(sketch: Sketch, flat: Tensor) -> Tensor:
    return torch.cat(sketch.apply(flat), dim=-1)


@given(sketches(), st.integers(0, 99), st.floats(-5, 5), st.floats(-5, 5))
def test_the_sketch_is_linear(sketch: Sketch, seed: int, a: float, b: float) -> None:
    x, y = _draw(seed, 2, sum(sketch.sizes))
    together = _joined(sketch, a * x + b * y)
    assert torch.allclose(together, a * _joined(sketch, x) + b * _joined(sketch, y), rtol=0, atol=1e-12)


@given(sketches(), st.integers(0, 99))
def test_transpose_is_the_adjoint(sketch: Sketch, seed: int) -> None:
    """<Px, y> = <x, P'y> for all x and y."""
    x = _draw(seed, 3, sum(sketch.sizes))
    y = tuple(_draw(seed + i + 1, 3, width) for i, width in enumerate(sketch.widths))
    left = (_joined(sketch, x) * torch.cat(y, dim=-1)).sum(-1)
    right = (x * sketch.transpose(y)).sum(-1)
    assert sketch.transpose(y).shape == x.shape
    assert torch.allclose(left, right, rtol=0, atol=1e-11)


@given(sketches())
def test_number_i_of_a_long_tensor_goes_to_sum_i_mod_k_with_a_sign(sketch: Sketch) -> None:
    images = _joined(sketch, torch.eye(sum(sketch.sizes), dtype=torch.float64))  # row j is P e_j
    start = column = 0
    for size, width in zip(sketch.sizes, sketch.widths, strict=True):
        for i in range(size):
            row = images[start + i]
            hit = column + (i % width)
            assert abs(float(row[hit])) == 1.0
            assert int(row.count_nonzero()) == 1
            if size == width:  # short enough to go through as it is
                assert float(row[hit]) == 1.0
        start, column = start + size, column + width


@given(SIZES, SEEDS, st.integers(0, 99))
def test_width_zero_changes_nothing(sizes: tuple[int, ...], seed: int, values: int) -> None:
    sketch = Sketch(sizes, 0, seed)
    flat = _draw(values, sum(sizes))
    assert sketch.widths == sizes
    assert torch.equal(_joined(sketch, flat), flat)
    assert torch.equal(sketch.transpose(sketch.apply(flat)), flat)


@given(sketches(), st.integers(0, 99))
def test_a_batch_of_sites_is_sketched_site_by_site(sketch: Sketch, seed: int) -> None:
    sites = _draw(seed, 3, sum(sketch.sizes))
    together = _joined(sketch, sites)
    for site in range(3):
        assert torch.equal(together[site], _joined(sketch, sites[site]))


def test_no_part_is_longer_than_the_width() -> None:
    assert Sketch((7, 3, 4, 1), 4, 0).widths == (4, 3, 4, 1)


def test_both_ends_draw_the_same_signs_and_another_seed_draws_others() -> None:
    flat = _draw(0, 64)
    one = _joined(Sketch((64,), 4, 9), flat)
    assert torch.equal(one, _joined(Sketch((64,), 4, 9), flat))
    assert not torch.equal(one, _joined(Sketch((64,), 4, 10), flat))


def test_squared_lengths_are_right_on_average_over_seeds() -> None:
    """E‖Px‖² = ‖x‖² for random signs; the mean of 400 draws stays within 5 standard errors."""
    flat = _draw(1, 40)
    squares = np.array([float(_joined(Sketch((40,), 8, seed), flat).square().sum()) for seed in range(400)])
    error = squares.std(ddof=1) / np.sqrt(len(squares))
    assert abs(squares.mean() - float(flat.square().sum())) < 5 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sketch_keeps_the_type(dtype: torch.dtype) -> None:
    sketch = Sketch((9, 2), 4, 3)
    parts = sketch.apply(torch.ones(11, dtype=dtype))
    assert {part.dtype for part in parts} == {dtype}
    assert sketch.transpose(parts).dtype == dtype
