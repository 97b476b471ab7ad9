"""How far this machine's clock is from the aggregator's, and when that matters."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

SKEW_SECONDS = 60.0


@dataclass(frozen=True)
class Skew:
    """Positive: this machine's clock is ahead."""

    seconds: float

    @property
    def matters(self) -> bool:
        return abs(self.seconds) > SKEW_SECONDS

    def __str__(self) -> str:
        return f"{abs(self.seconds):.0f} s {'ahead of' if self.seconds > 0 else 'behind'} the aggregator's"


def skew_of(aggregator_unix_ms: int, now: datetime.datetime) -> Skew:
    return Skew(now.timestamp() - aggregator_unix_ms / 1000)
