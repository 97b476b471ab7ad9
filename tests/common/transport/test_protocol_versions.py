from __future__ import annotations

import pytest

from fedmap.transport.channel_options import OLDEST_PROTOCOL, PROTOCOL, agreed_protocol


@pytest.mark.parametrize(
    ("peer", "own", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (1, 2), 1),  # an agent that was not updated yet
        ((1, 2), (1, 1), 1),  # an agent that was updated first
        ((2, 3), (1, 2), 2),
        ((1, 9), (1, 2), 2),
        ((7, 9), (1, 2), None),
        ((1, 1), (2, 3), None),
        ((0, 0), (1, 1), None),
        ((3, 1), (1, 2), None),  # nonsense
    ],
)
def test_the_newest_version_that_both_know_is_spoken(
    peer: tuple[int, int], own: tuple[int, int], agreed: int | None
) -> None:
    assert agreed_protocol(*peer, *own) == agreed


def test_an_agent_of_0_1_0_which_speaks_protocol_1_only_is_understood() -> None:
    assert agreed_protocol(1, 1) == 1
    assert OLDEST_PROTOCOL == 1 <= PROTOCOL
