"""Counts of rows in the tables of a comparison: below the plan's floor they are said as "fewer than".

For sizes, reasons and notes. Figures of a small site are not withheld by this: a comparison is there to show
them, and its folder stays where the data are.
"""

from __future__ import annotations

import re

from fedmap.scoring.disclosure import is_small_cell

_COUNT = re.compile(
    r"\b(?P<count>\d+)(?P<kind> (?:test |validation |training )?)rows?\b"
    r"|\b(?P<of>\d+)(?= of \d+ (?:rows|values)\b| missing values\b)"
)


def size(count: int, floor: int) -> int | str:
    """A number for a table; empty where it is small."""
    return "" if is_small_cell(count, floor) else count


def in_words(text: str, floor: int) -> str:
    """The text with its small counts of rows and values blurred."""

    def blurred(found: re.Match[str]) -> str:
        count = found["count"] or found["of"]
        if not is_small_cell(int(count), floor):
            return found[0]
        return f"fewer than {floor}" + (f"{found['kind']}rows" if found["count"] else "")

    return _COUNT.sub(blurred, text)
