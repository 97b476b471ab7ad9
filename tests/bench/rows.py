"""What a benchmark gives: rows of ratios, and the table of docs/benchmarks.md that they are written into."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Row:
    what: str
    measured: float
    target: float | None = None  # None: for information
    at_least: bool = False
    unit: str = "×"

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    def line(self) -> str:
        target = "" if self.target is None else f"{'≥' if self.at_least else '≤'} {self.target:g} {self.unit}"
        verdict = "" if self.target is None else "met" if self.met else "**missed**"
        digits = f"{self.measured:.6g}" if 1 < self.measured < 1.001 else f"{self.measured:.3g}"
        return f"| {self.what} | {digits} {self.unit} | {target} | {verdict} |"


def publish(name: str, command: str, measure: Callable[[], Iterable[Row]], docs: Path = DOCS) -> int:
    """Measure, print, and write the table between its two marks in the docs; 1 where a target was missed."""
    _around_table(docs, name)  # not found out after minutes
    load = os.getloadavg()[0]
    rows = list(measure())
    day = date.today().strftime("%d %B %Y").lstrip("0")
    run = f"`{command}`: one run of {day} on {os.cpu_count()} cores, with a load of {load:.1f} before it."
    table = ["| what | measured | target | |", "|---|---|---|---|", *(row.line() for row in rows), "", run]
    before, after = _around_table(docs, name)
    docs.write_text("\n".join([before, *table, after]))
    sys.stdout.write("\n".join([*table, "", ""]))
    return int(not all(row.met for row in rows))


def _around_table(docs: Path, name: str) -> tuple[str, str]:
    """What stands before and after a benchmark's table, with its marks."""
    opening, closing = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, opened, rest = docs.read_text().partition(opening)
    _, closed, after = rest.partition(closing)
    assert all((opened, closed)), f"{docs} has no marks for {name}"
    return before + opening, closing + after


def best_seconds(alternatives: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Run every alternative once to warm up, then in turns; the shortest time of each, in seconds."""
    best = dict.fromkeys(alternatives, float("inf"))
    for turn in range(turns + 1):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best
