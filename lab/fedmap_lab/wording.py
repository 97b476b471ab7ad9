"""Numbers and counts as people write them, the same in sentences, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

SMALLEST_P = 0.001


def signed(value: float) -> str:
    """With its sign; no sign where nothing is left of it after rounding."""
    text = f"{value:+.3f}".replace("-", "−")
    return text[1:] if text[1:] == "0.000" else text


def plain(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def counted(number: int, word: str = "site") -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def joined(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def p_value(value: float) -> str:
    return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"


def p_words(value: float) -> str:
    return f"p {p_value(value)}" if value < SMALLEST_P else f"p = {p_value(value)}"
