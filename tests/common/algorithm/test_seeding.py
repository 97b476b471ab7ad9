"""Streams depend on their name only."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmap.algorithm.seeding import derive_seed, numpy_stream, torch_stream

SEEDS = st.integers(0, 2**64 - 1)
PARTS = st.lists(st.text("abcxyz019-_.", min_size=1, max_size=6) | st.integers(0, 999), max_size=3)


@given(SEEDS, PARTS)
def test_a_seed_is_64_bits_and_always_the_same(seed: int, names: list[str | int]) -> None:
    derived = derive_seed(seed, *names)
    assert 0 <= derived < 2**64
    assert derived == derive_seed(seed, *names)


def test_a_seed_is_the_same_on_every_machine() -> None:
    """The first eight bytes of sha256('[7, "fit", 3, "north"]'), little-endian: studies depend on it."""
    assert derive_seed(7, "fit", 3, "north") == 0x7ADB243430CFB63F


@given(SEEDS, PARTS, PARTS)
def test_other_purposes_get_other_seeds(seed: int, one: list[str | int], other: list[str | int]) -> None:
    assert (derive_seed(seed, *one) == derive_seed(seed, *other)) == (one == other)  # 3 and "3" differ


@given(SEEDS)
def test_streams_repeat_for_a_seed_and_differ_for_another(seed: int) -> None:
    again = numpy_stream(seed).integers(0, 2**63, 4)
    assert np.array_equal(numpy_stream(seed).integers(0, 2**63, 4), again)
    assert not np.array_equal(numpy_stream(seed ^ 1).integers(0, 2**63, 4), again)
    drawn = torch.rand(4, generator=torch_stream(seed))
    assert torch.equal(torch.rand(4, generator=torch_stream(seed)), drawn)
    assert not torch.equal(torch.rand(4, generator=torch_stream(seed ^ 1)), drawn)


def test_a_stream_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    torch.rand(3, generator=torch_stream(5))
    numpy_stream(5).random(3)
    assert torch.equal(torch.get_rng_state(), before)
