"""What the settings say of a round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.algorithm.settings import FedmapSettings, TrainingSettings


def consensus_rounds(share: float, rounds: int) -> list[int]:
    settings = FedmapSettings(training=TrainingSettings(consensus_share=share))
    return [number for number in range(1, rounds + 1) if settings.is_consensus(number, rounds)]


@pytest.mark.parametrize(
    ("share", "rounds", "first"),
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
def test_consensus_rounds_are_their_share_of_the_rounds_rounded_down(
    share: float, rounds: int, first: int
) -> None:
    assert consensus_rounds(share, rounds) == list(range(1, first + 1))


def test_the_learned_penalty_rests_in_consensus_rounds() -> None:
    settings = FedmapSettings(training=TrainingSettings(consensus_share=0.5))
    assert settings.aggregation_in(2, 4) == replace(settings.aggregation, psi_steps=0)
    assert settings.aggregation_in(3, 4) == settings.aggregation


@given(share=st.floats(0, 1, exclude_max=True), rounds=st.integers(1, 300))
def test_consensus_rounds_come_first_and_never_have_the_last_round(share: float, rounds: int) -> None:
    found = consensus_rounds(share, rounds)
    assert found == list(range(1, len(found) + 1))
    assert len(found) < rounds
