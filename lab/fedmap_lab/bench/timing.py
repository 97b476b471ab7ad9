"""Comparing alternatives fairly: they take turns, and each keeps its best time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best_seconds(alternatives: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Run every alternative once to warm up, then in turns; the shortest time of each, in seconds."""
    for run in alternatives.values():
        run()
    best = dict.fromkeys(alternatives, float("inf"))
    for _ in range(turns):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
