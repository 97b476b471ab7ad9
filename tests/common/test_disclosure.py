"""Statistics without small cells: rare values are not in them, and everything else is exact."""

from __future__ import annotations

import torch

from fedmap.algorithm.pooling.statistics import feature_statistics
from fedmap.scoring.disclosure import is_small_cell, released_statistics


def test_zero_and_the_floor_itself_are_no_small_cells() -> None:
    assert [is_small_cell(count, 5) for count in (0, 1, 4, 5, 6)] == [False, True, True, False, False]


def test_common_inputs_leave_exactly_as_they_are() -> None:
    rows = torch.randn(50, 2)
    released = released_statistics(rows, (True, True), 10)
    exact = feature_statistics(rows)
    assert torch.equal(released.statistics.mean, exact.mean)
    assert torch.equal(released.statistics.m2, exact.m2)
    assert (released.unscaled, released.rare) == (0, 0)


def test_nobody_learns_of_the_few_who_differ() -> None:
    none, few, enough = torch.zeros(50, 1), torch.zeros(50, 1), torch.zeros(50, 1)
    few[:4] = 3.5
    enough[:5] = 3.5
    quiet = released_statistics(none, (True,), 5).statistics
    hidden = released_statistics(few, (True,), 5)
    assert torch.equal(hidden.statistics.mean, quiet.mean)
    assert torch.equal(hidden.statistics.m2, quiet.m2)
    assert hidden.rare == 1
    assert released_statistics(enough, (True,), 5).statistics.mean.item() > 0


def test_a_few_zeros_among_ones_are_hidden_too() -> None:
    rows = torch.ones(50, 1)
    rows[7] = 0
    released = released_statistics(rows, (True,), 5).statistics
    assert (released.mean.item(), released.m2.item()) == (1.0, 0.0)


def test_inputs_that_are_not_scaled_are_not_described_at_all() -> None:
    rows = torch.randn(50, 2)
    released = released_statistics(rows, (False, True), 5)
    assert released.statistics.mean[0] == 0
    assert released.statistics.m2[0] == 0
    assert released.unscaled == 1
    assert released.statistics.rows == 50


def test_no_rows_give_empty_statistics() -> None:
    released = released_statistics(torch.zeros(0, 2), (True, False), 5)
    assert released.statistics.rows == 0
    assert not released.statistics.mean.any()
