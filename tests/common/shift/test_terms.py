"""What a site lets go of: exact where many rows stand behind a number, and silent where few do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmap.errors import ModelError, RejectedError
from fedmap.files.tensors import decode_tensors, encode_tensors
from fedmap.shift.told.folding import MOST_DIMENSIONS, fold
from fedmap.shift.told.terms import (
    ReferenceTerms,
    check_reference,
    decode_reference,
    encode_reference,
    expected_reference,
    reference_terms,
)

FLOOR = 10
Change = Callable[[ReferenceTerms], ReferenceTerms]


def normal(rows: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


def indicators(*cells: tuple[int, tuple[int, ...]]) -> Tensor:
    """So many rows of each combination."""
    return torch.cat([torch.tensor([row] * count) for count, row in cells]).float()


def same(first: ReferenceTerms, second: ReferenceTerms) -> bool:
    return all(torch.allclose(vars(first)[name], vars(second)[name]) for name in vars(first))


def test_moments_are_exact_where_nobody_is_rare() -> None:
    rows = normal(200, 3)
    terms = reference_terms(rows, (True,) * 3, FLOOR)
    exact = rows.double().numpy()
    assert np.allclose(terms.mean, exact.mean(0))
    assert np.allclose(terms.m2, ((exact - exact.mean(0)) ** 2).sum(0))
    assert np.allclose(terms.joint_scatter, np.cov(exact.T) * 199)
    check_reference(terms, 200)


def test_nobody_learns_of_the_few_who_differ() -> None:
    none, few = normal(100, 2), normal(100, 2)
    none[:, 1] = 0.0
    few[:, 1] = 0.0
    few[:4, 1] = 7.5
    flags = (True, True)
    assert same(reference_terms(few, flags, FLOOR), reference_terms(none, flags, FLOOR))


@pytest.mark.parametrize("small", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_a_small_combination_of_two_indicators_cannot_be_worked_out(small: tuple[int, int]) -> None:
    cells = [(1, 1), (1, 0), (0, 1), (0, 0)]
    moments = []
    for hidden in (3, 5, 8):
        opposite = (1 - small[0], 1 - small[1])
        rest = [cell for cell in cells if cell not in (small, opposite)]
        # The margins stay the same: what one combination gains, its neighbours lose.
        rows = indicators((hidden, small), (40 + hidden, opposite), *((60 - hidden, cell) for cell in rest))
        moments.append(reference_terms(rows, (False, False), FLOOR).joint_scatter)
    assert torch.allclose(moments[0], moments[1])
    assert torch.allclose(moments[0], moments[2])


def test_two_rare_diagnoses_in_the_same_few_patients_leave_no_trace() -> None:
    def with_common(patients: int) -> Tensor:
        counts = torch.zeros(200, 2)
        counts[:20, 0] = 3.0
        counts[20 - patients : 40 - patients, 1] = 2.0
        return reference_terms(counts, (True, True), FLOOR).joint_scatter

    assert torch.allclose(with_common(3), with_common(9))
    assert torch.allclose(with_common(3), with_common(0))
    assert not torch.allclose(with_common(3), with_common(12))


def test_a_small_first_category_cannot_be_counted_from_the_others() -> None:
    def share(first: int) -> ReferenceTerms:
        rows = indicators((first, (0, 0, 0)), (60 - first, (1, 0, 0)), (40, (0, 1, 0)), (30, (0, 0, 1)))
        return reference_terms(rows, (False,) * 3, FLOOR)

    assert same(share(3), share(7))
    assert same(share(3), share(0))
    assert not same(share(3), share(15))


def test_a_site_with_fewer_rows_than_the_floor_sends_zeros() -> None:
    terms = reference_terms(normal(9, 2), (True, True), FLOOR)
    check_reference(terms, 9)
    assert not any(vars(terms)[name].any() for name in ("rows", "mean", "m2", "counts", "joint_scatter"))


def test_many_inputs_are_folded_as_their_rows_are() -> None:
    inputs = MOST_DIMENSIONS + 36
    rows = normal(300, inputs)
    terms = reference_terms(rows, (True,) * inputs, FLOOR)
    folded = fold(rows.double())
    assert terms.joint_mean.shape == (MOST_DIMENSIONS,)
    assert torch.allclose(terms.joint_mean, folded.mean(0))
    assert torch.allclose(terms.joint_scatter, torch.cov(folded.T) * 299)
    check_reference(terms, 300)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(10, 60), st.integers(1, 6), st.integers(1, 12))
def test_whatever_a_site_sends_passes_the_gate(seed: int, rows: int, inputs: int, floor: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, inputs, generator=generator)
    kind = torch.randint(0, 3, (inputs,), generator=generator)
    values = torch.where(kind == 1, (values > 0.8).float(), torch.where(kind == 2, values.round(), values))
    flags = tuple((kind != 1).tolist())
    check_reference(reference_terms(values, flags, floor), rows)


def test_terms_travel_without_losing_a_bit() -> None:
    terms = reference_terms(normal(80, 3), (True, True, False), FLOOR)
    data = encode_tensors(encode_reference(terms))
    arrays = decode_tensors(data, expected_reference(3), "the reference terms")
    read = decode_reference(arrays, 3)
    assert all(torch.equal(vars(read)[name], vars(terms)[name]) for name in vars(terms))


@pytest.mark.parametrize("fault", ["missing", "shape", "type", "infinite", "unknown"])
def test_terms_that_are_not_as_expected_are_refused(fault: str) -> None:
    arrays = encode_reference(reference_terms(normal(80, 2), (True, True), FLOOR))
    match fault:
        case "missing":
            del arrays["reference.m2"]
        case "shape":
            arrays["reference.mean"] = torch.zeros(3, dtype=torch.float64)
        case "type":
            arrays["reference.mean"] = torch.zeros(2, dtype=torch.float32)
        case "infinite":
            arrays["reference.mean"][0] = float("inf")
        case _:
            arrays["reference.rows_of_patients"] = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(RejectedError, match=r"reference terms: "):
        decode_reference(arrays, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: replace(t, rows=t.rows + 100), "more rows"),
        (lambda t: replace(t, rows=t.rows - 1), "add up"),
        (lambda t: replace(t, floor=t.floor * 0), "floor"),
        (lambda t: replace(t, scaled=t.scaled + 1), "marks"),
        (lambda t: replace(t, m2=-t.m2), "negative"),
        (lambda t: replace(t, counts=t.counts + 0.25), "no count"),
        (lambda t: replace(t, joint_scatter=-t.joint_scatter), "no rows"),
        (lambda t: replace(t, joint_scatter=t.joint_scatter + torch.eye(2).double()[[1, 1]]), "symmetric"),
        (lambda t: replace(t, joint_scatter=t.joint_scatter * 1e300), "too large"),
        (lambda t: replace(t, floor=t.floor * 5), "below the floor"),
        (lambda t: replace(t, rows=t.rows * 0, counts=t.counts.clamp(min=0) * 0), "moments of no rows"),
    ],
)
def test_terms_that_no_site_can_have_are_refused(change: Change, named: str) -> None:
    terms = reference_terms(normal(80, 2), (True, True), FLOOR)
    with pytest.raises(RejectedError, match=named):
        check_reference(change(terms), 80)


def test_rows_that_are_not_finite_or_of_another_layout_are_refused() -> None:
    with pytest.raises(ModelError, match="not finite"):
        reference_terms(torch.tensor([[float("nan")]] * 20), (True,), FLOOR)
    with pytest.raises(ModelError, match="2 inputs"):
        reference_terms(normal(20, 2), (True,), FLOOR)
