"""Flat vectors, their views and their names."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.errors import ModelError

NAMES = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4, unique=True)
SHAPE = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@st.composite
def specs(draw: st.DrawFn) -> ParameterSpec:
    names = draw(NAMES)
    return ParameterSpec(tuple(names), tuple(draw(SHAPE) for _ in names))


def _vector(spec: ParameterSpec, *lead: int) -> Tensor:
    return torch.randn(*lead, spec.size, generator=torch.Generator().manual_seed(3))


@given(specs(), st.lists(st.integers(1, 3), max_size=2))
def test_views_then_flatten_gives_the_same_bits(spec: ParameterSpec, lead: list[int]) -> None:
    flat = _vector(spec, *lead)
    assert torch.equal(spec.flatten(spec.views(flat), lead=len(lead)), flat)


@given(specs())
def test_views_have_the_named_shapes_and_share_memory(spec: ParameterSpec) -> None:
    flat = torch.zeros(2, spec.size)
    views = spec.views(flat)
    assert [tuple(view.shape) for view in views] == [(2, *shape) for shape in spec.shapes]
    for view in views:
        view.fill_(1.0)
    assert bool((flat == 1).all())


def test_views_cut_in_order_and_row_by_row() -> None:
    first, second = ParameterSpec(("a", "b"), ((2, 2), (1,))).views(torch.arange(5.0))
    assert first.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert second.tolist() == [4.0]


def test_a_mapping_is_a_copy() -> None:
    spec = ParameterSpec(("a",), ((2,),))
    flat = torch.ones(2)
    named = spec.to_mapping(flat)
    flat.zero_()
    assert named["a"].tolist() == [1.0, 1.0]


@given(specs(), specs())
def test_fingerprints_are_equal_exactly_when_the_layouts_are(
    one: ParameterSpec, other: ParameterSpec
) -> None:
    assert one.fingerprint == ParameterSpec(one.names, one.shapes).fingerprint
    assert (one.fingerprint == other.fingerprint) == (one == other)


@pytest.mark.parametrize(
    "other",
    [
        ParameterSpec(("b", "a"), ((3,), (2, 2))),
        ParameterSpec(("a", "b"), ((4,), (3,))),
        ParameterSpec(("a", "b"), ((2, 2), (3, 1))),
        ParameterSpec(("a", "bb"), ((2, 2), (3,))),
        ParameterSpec(("a", "b", "c"), ((2, 2), (3,), (1,))),
        ParameterSpec(('a","b',), ((2, 2),)),
    ],
    ids=["order", "shape", "trailing axis", "name", "one more", "quotes in a name"],
)
def test_the_fingerprint_changes_with(other: ParameterSpec) -> None:
    assert other.fingerprint != ParameterSpec(("a", "b"), ((2, 2), (3,))).fingerprint


def test_two_parameters_of_one_name_are_refused() -> None:
    with pytest.raises(ModelError):
        ParameterSpec(("a", "a"), ((1,), (1,)))


def test_names_without_a_shape_are_refused() -> None:
    with pytest.raises(ModelError):
        ParameterSpec(("a", "b"), ((1,),))


@pytest.mark.parametrize(
    "flat",
    [
        torch.zeros(2),
        torch.zeros(4),
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(3, dtype=torch.float16),
        torch.tensor([0.0, torch.nan, 0.0]),
        torch.tensor([0.0, torch.inf, 0.0]),
    ],
    ids=["too short", "too long", "integers", "half precision", "nan", "inf"],
)
def test_a_vector_that_is_no_model_is_refused(flat: Tensor) -> None:
    spec = ParameterSpec(("a", "b"), ((2,), (1,)))
    with pytest.raises(ModelError):
        spec.check(flat)
    with pytest.raises(ModelError):
        spec.to_mapping(flat)
