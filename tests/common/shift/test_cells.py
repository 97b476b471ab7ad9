"""Histograms without small cells: nobody is counted alone, nobody is lost, and no tail is invented."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.shift.told.cells import (
    CELLS,
    DOWN,
    EDGES,
    UP,
    block_numbers,
    grid,
    histogram,
    join_small_cells,
    pooled_shares,
)

COUNTS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 7, 9, 10, 12, 40]), min_size=2, max_size=12)


@given(COUNTS, st.integers(1, 15))
def test_no_count_below_the_floor_is_told_and_every_row_is_told_once(counts: list[int], floor: int) -> None:
    exact = torch.tensor([counts], dtype=torch.float64)
    told = join_small_cells(exact, floor)
    kept = told[(told != UP) & (told != DOWN)]
    assert not ((kept > 0) & (kept < floor)).any()
    if sum(counts) >= floor:
        assert kept.sum() == sum(counts)
    else:
        assert kept.sum() == 0


@given(COUNTS, st.integers(1, 15))
def test_each_told_count_is_that_of_its_block(counts: list[int], floor: int) -> None:
    exact = torch.tensor([counts], dtype=torch.float64)
    told = join_small_cells(exact, floor)
    if sum(counts) < floor:
        return
    sums = torch.zeros_like(exact).scatter_add(1, block_numbers(told), exact)
    assert torch.equal(sums, told.clamp(min=0))


def test_an_empty_cell_stays_empty_beside_a_small_one() -> None:
    told = join_small_cells(torch.tensor([[0.0, 0.0, 3.0, 50.0, 4.0, 0.0]], dtype=torch.float64), 10)
    assert told.tolist() == [[0.0, 0.0, UP, 57.0, DOWN, 0.0]]


def test_a_value_on_an_edge_belongs_to_the_cell_above() -> None:
    counts = histogram(torch.tensor([[0.0], [1.0], [-5000.0], [5000.0]]), grid(1))[0]
    assert counts[EDGES.index(0.0) + 1] == 1
    assert counts[EDGES.index(1.0) + 1] == 1
    assert counts[0] == counts[CELLS - 1] == 1


def test_pooled_shares_are_plain_shares_where_nothing_was_joined() -> None:
    first, second = torch.tensor([[10.0, 20.0, 30.0]]).double(), torch.tensor([[0.0, 40.0, 0.0]]).double()
    shares = pooled_shares([first, second])
    assert torch.allclose(shares, torch.tensor([[0.1, 0.6, 0.3]], dtype=torch.float64), atol=1e-6)


def test_a_joined_block_is_spread_as_the_other_sites_have_it() -> None:
    joined = torch.tensor([[UP, 40.0, 0.0]], dtype=torch.float64)
    apart = torch.tensor([[10.0, 30.0, 0.0]], dtype=torch.float64)
    shares = pooled_shares([joined, apart])
    assert torch.allclose(shares, torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64), atol=1e-4)


def test_a_tail_that_every_site_joined_away_is_not_invented() -> None:
    told = [torch.tensor([[30.0, 40.0, DOWN, DOWN]], dtype=torch.float64) for _ in range(3)]
    assert pooled_shares(told)[0, 2:].sum() < 1e-6
