"""What the settings say of a round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.algorithm.settings import FedmapSettings, TrainingSettings


def rounds_without_penalty(share: float, rounds: int) -> list[int]:
    settings = FedmapSettings(training=TrainingSettings(warm_up_share=share))
    return [number for number in range(1, rounds + 1) if not settings.is_penalised(number, rounds)]


@pytest.mark.parametrize(
    ("share", "rounds", "warm_up"),
    [
        (0.0, 5, 0),
        (0.5, 1, 0),
        (0.5, 3, 1),
        (0.67, 30, 20),
        (0.29, 100, 29),
        (0.7, 90, 63),
        (0.99999999, 7, 6),
    ],
)
def test_a_warm_up_is_its_share_of_the_rounds_rounded_down(share: float, rounds: int, warm_up: int) -> None:
    assert rounds_without_penalty(share, rounds) == list(range(1, warm_up + 1))


@given(share=st.floats(0, 1, exclude_max=True), rounds=st.integers(1, 300))
def test_a_warm_up_is_at_the_beginning_and_never_has_the_last_round(share: float, rounds: int) -> None:
    warm_up = rounds_without_penalty(share, rounds)
    assert warm_up == list(range(1, len(warm_up) + 1))
    assert len(warm_up) < rounds
