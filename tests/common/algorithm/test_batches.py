"""Packing, shuffling and dropout masks: every row once, nothing that depends on the sites beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.batches import Batch, BatchStream, first_batch_rows, full_batches, pack
from fedmap.algorithm.model.layers import Dropout

ROWS = st.integers(2, 40)
BATCH = st.integers(2, 9)


def _numbered(rows: int, survival: bool = False) -> Examples:
    """Rows whose only feature is their number; survival times fall in steps of three rows."""
    number = torch.arange(rows, dtype=torch.float32)[:, None]
    if survival:
        time = torch.from_numpy(1.0 + np.arange(rows)[::-1] // 3)
        return Examples(number, time, torch.arange(rows) % 2 == 0)
    return Examples(number, torch.arange(rows) % 2)


def _stream(
    rows: Sequence[int],
    batch_size: int,
    seeds: Sequence[int] | None = None,
    dropouts: tuple[Dropout, ...] = (),
    survival: bool = False,
) -> BatchStream:
    data = pack([_numbered(n, survival) for n in rows], "cox" if survival else "bernoulli")
    return BatchStream(data, list(range(len(rows))) if seeds is None else seeds, batch_size, dropouts)


def _ordered(rows: list[int], batch_size: int) -> list[int]:
    counts = np.array(rows)
    return [rows[i] for i in np.argsort(-full_batches(counts, batch_size), kind="stable")]


def _of(site: int, batches: Sequence[Batch]) -> list[list[int]]:
    """The numbers of one site's true rows, batch by batch."""
    return [
        [int(x) for x in b.features[site, : int(b.rows[site]), 0].tolist()] for b in batches if site < b.sites
    ]


@pytest.mark.parametrize(
    ("rows", "first", "full"),
    [
        (2, 2, 0),  # smaller than a batch
        (3, 3, 0),
        (4, 4, 0),  # exactly one batch
        (5, 4, 0),  # one row over sits the epoch out
        (6, 2, 1),  # the remainder of two comes first
        (7, 3, 1),
        (8, 4, 1),  # no remainder
        (9, 4, 1),
        (11, 3, 2),
    ],
)
def test_the_first_batch_takes_the_remainder(rows: int, first: int, full: int) -> None:
    counts = np.array([rows])
    assert first_batch_rows(counts, 4).tolist() == [first]
    assert full_batches(counts, 4).tolist() == [full]


@given(ROWS, BATCH)
def test_at_most_one_row_sits_out_and_no_batch_has_a_single_row(rows: int, batch_size: int) -> None:
    counts = np.array([rows])
    first, full = int(first_batch_rows(counts, batch_size)[0]), int(full_batches(counts, batch_size)[0])
    assert 2 <= first <= batch_size
    assert rows - (first + full * batch_size) == int(rows > batch_size and rows % batch_size == 1)


@given(st.lists(ROWS, min_size=1, max_size=5), BATCH, st.booleans())
def test_an_epoch_holds_every_row_once(rows: list[int], batch_size: int, survival: bool) -> None:
    rows = _ordered(rows, batch_size)
    batches = list(_stream(rows, batch_size, survival=survival).epoch())
    for site, count in enumerate(rows):
        seen = Counter(number for batch in _of(site, batches) for number in batch)
        assert max(seen.values()) == 1
        assert set(seen) <= set(range(count))
        assert len(seen) == count - int(count > batch_size and count % batch_size == 1)


@given(st.lists(ROWS, min_size=1, max_size=4), BATCH)
def test_padding_carries_no_weight_and_true_rows_carry_one_and_their_label(
    rows: list[int], batch_size: int
) -> None:
    for batch in _stream(_ordered(rows, batch_size), batch_size).epoch():
        width = batch.features.shape[1]
        expected = torch.arange(width) < batch.rows[:, None]
        assert torch.equal(batch.outcome.weight, expected.float())
        assert batch.padded == bool((batch.rows < width).any())
        assert batch.outcome.label is not None
        true = batch.outcome.weight.bool()
        assert torch.equal(batch.features[..., 0][true].long() % 2, batch.outcome.label[true])


@given(st.lists(ROWS, min_size=1, max_size=4), BATCH)
def test_survival_batches_keep_falling_times_and_their_ties(rows: list[int], batch_size: int) -> None:
    """A row's number gives its time and event, so the tie structure can be worked out from the features."""
    rows = _ordered(rows, batch_size)
    for batch in _stream(rows, batch_size, survival=True).epoch():
        assert batch.outcome.risk is not None
        for site in range(batch.sites):
            count = int(batch.rows[site])
            numbers = batch.features[site, :count, 0].numpy().astype(np.int64)
            time = 1 + (rows[site] - 1 - numbers) // 3
            assert bool((np.diff(time) <= 0).all())
            for row in range(count):
                tied = np.flatnonzero(time == time[row])
                assert int(batch.outcome.risk.last[site, row]) == tied.max()
                assert int(batch.outcome.risk.before[site, row]) == tied.min()
                assert bool(batch.outcome.risk.event[site, row]) == (numbers[row] % 2 == 0)
            assert not bool(batch.outcome.risk.event[site, count:].any())


@given(st.permutations(range(7)))
def test_survival_rows_are_sorted_by_falling_time_with_their_features(order: list[int]) -> None:
    time = torch.tensor(order, dtype=torch.float64)
    packed = pack([Examples(time.float()[:, None], time, time > 3)], "cox")
    assert packed.time is not None
    assert packed.event is not None
    assert packed.time[0].tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert packed.features[0, :, 0].tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert packed.event[0].tolist() == [True] * 3 + [False] * 4


def test_packing_pads_with_zeros_up_to_the_longest_site() -> None:
    packed = pack([_numbered(2), _numbered(4), _numbered(0)], "bernoulli")
    assert packed.features[..., 0].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert packed.rows.tolist() == [2, 4, 0]
    assert packed.outcome().weight.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]


def test_a_remainder_of_one_row_is_another_row_every_epoch() -> None:
    stream = _stream([9], 4)
    out: set[int] = set()
    for _ in range(60):
        seen = {number for batch in _of(0, list(stream.epoch())) for number in batch}
        (left,) = set(range(9)) - seen
        out.add(left)
    assert out == set(range(9))


DROPOUTS = (Dropout(0.3, 3), Dropout(0.5, 2))


@given(st.lists(ROWS, max_size=4), ROWS, BATCH, st.integers(0, 99))
def test_shuffles_and_masks_do_not_depend_on_neighbours(
    others: list[int], rows: int, batch_size: int, seed: int
) -> None:
    together = _ordered([*others, rows], batch_size)
    at = together.index(rows)
    seeds = [seed if site == at else 1000 + site for site in range(len(together))]
    alone = _stream([rows], batch_size, [seed], DROPOUTS)
    beside = _stream(together, batch_size, seeds, DROPOUTS)
    for _ in range(2):
        one, other = list(alone.epoch()), list(beside.epoch())
        assert _of(0, one) == _of(at, other)
        theirs = [batch for batch in other if at < batch.sites]
        for mine, packed in zip(one, theirs, strict=True):
            count = int(mine.rows[0])
            for mask, packed_mask in zip(mine.keep, packed.keep, strict=True):
                assert torch.equal(mask[0, :count], packed_mask[at, :count])


def test_sites_that_go_on_draw_what_they_would_have_drawn() -> None:
    rows, seeds = [17, 12, 9, 3], [5, 6, 7, 8]
    data = pack([_numbered(n) for n in rows], "bernoulli")
    stays, shrinks = (BatchStream(data, seeds, 4, DROPOUTS) for _ in range(2))
    list(stays.epoch()), list(shrinks.epoch())
    keep = np.array([0, 2])
    shrinks.select(keep, data.select(keep))
    whole, fewer = list(stays.epoch()), list(shrinks.epoch())
    assert _of(0, whole) == _of(0, fewer)
    assert _of(2, whole) == _of(1, fewer)
    assert torch.equal(whole[0].keep[0][2, :4], fewer[0].keep[0][1, :4])


@given(ROWS, BATCH, st.integers(0, 99))
def test_a_seed_gives_the_same_epochs_and_another_seed_others(rows: int, batch_size: int, seed: int) -> None:
    def draw(with_seed: int) -> tuple[list[list[int]], list[float]]:
        stream = _stream([rows], batch_size, [with_seed], (Dropout(0.5, 64),))
        batches = [batch for _ in range(2) for batch in stream.epoch()]
        return _of(0, batches), torch.cat([batch.keep[0].flatten() for batch in batches]).tolist()

    assert draw(seed) == draw(seed)
    assert draw(seed)[1] != draw(seed + 1)[1]


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_scales_by_its_inverse(rate: float) -> None:
    """200 000 units: the kept share lies within 5 standard errors of 1 − rate."""
    stream = _stream([2000], 2000, [3], (Dropout(rate, 100),))
    (batch,) = stream.epoch()
    mask = batch.keep[0]
    kept = mask > 0
    error = (rate * (1 - rate) / mask.numel()) ** 0.5
    assert abs(float(kept.float().mean()) - (1 - rate)) < 5 * error
    (scale,) = set(mask[kept].tolist())
    assert scale == pytest.approx(1 / (1 - rate), rel=1e-3)
    assert abs(float(mask.mean()) - 1.0) < 5 * error / (1 - rate)


def test_units_of_one_mask_and_masks_of_two_layers_are_drawn_apart() -> None:
    stream = _stream([1000], 1000, [4], (Dropout(0.5, 10), Dropout(0.5, 10)))
    (batch,) = stream.epoch()
    one, other = ((mask[0] > 0).double().numpy() for mask in batch.keep)
    both = np.corrcoef(np.concatenate([one, other], axis=1).T)
    np.fill_diagonal(both, 0.0)
    assert float(np.abs(both).max()) < 0.2  # 1000 pairs: standard error 0.03


def test_sites_must_be_packed_by_falling_number_of_batches() -> None:
    with pytest.raises(AssertionError):
        _stream([3, 40], 4)
