"""Which version of the contract two sides speak with each other: the newest that both know.

A version of the software is something else: it is exchanged for people to read and never compared.
"""

from __future__ import annotations

OLDEST_PROTOCOL = 1
"""Oldest version of the contract that this software still speaks; the release before this one speaks it."""
PROTOCOL = 1
"""Newest version of the contract that this software speaks."""


def agreed_protocol(
    oldest: int, newest: int, own_oldest: int = OLDEST_PROTOCOL, own_newest: int = PROTOCOL
) -> int | None:
    """The version to speak with a peer that knows `oldest` to `newest`; None where there is none."""
    agreed = min(newest, own_newest)
    return agreed if agreed >= max(oldest, own_oldest) else None
