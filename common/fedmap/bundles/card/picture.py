"""The calibration picture: predicted against observed risk, as a small SVG of our own.

Points with their 95 % intervals over the diagonal, and below them how many rows stand behind each. Black,
grey and one blue on white, so that it prints. No script, no style sheet, no font, no address of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from textwrap import wrap

from fedmap.scoring.figures import CalibrationBin

_WIDTH, _HEIGHT = 520, 620
_LEFT, _RIGHT, _TOP = 72, 496, 64
_SIDE = _RIGHT - _LEFT  # the plot is square: the diagonal stands at 45 degrees
_BOTTOM = _TOP + _SIDE
_STRIP_TOP, _STRIP_BOTTOM = _BOTTOM + 12, _BOTTOM + 60
_INK, _SOFT, _GRID, _BLUE = "#1a1a1a", "#595959", "#e3e3e3", "#1f5fa8"
_SCALES = ((0.05, 0.01), (0.1, 0.02), (0.2, 0.05), (0.3, 0.05), (0.5, 0.1), (1.0, 0.2))
"""Where the axes may end, and the step of their marks: small risks are shown large."""
_LETTERS = 46  # of the title in a line


def calibration_svg(bins: Sequence[CalibrationBin], title: str) -> str:
    """The picture as a whole SVG file."""
    shown = sorted((one for one in bins if one.rows), key=lambda one: one.predicted)
    body = [*_heading(title)]
    if shown:
        end, step = _scale(shown)
        body += [*_axes(end, step), *_strip(shown, end), *_points(shown, end)]
    else:
        middle = (_LEFT + _RIGHT) / 2
        body += [*_axes(1.0, 0.2), _text(middle, _BOTTOM - 40, "Too few rows for a curve.", 15)]
    described = escape(_description(shown))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" font-family="system-ui, Helvetica, Arial, sans-serif">',
        f"<title>{escape(_clean(title))}</title>",
        f"<desc>{described}</desc>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _description(bins: Sequence[CalibrationBin]) -> str:
    """The picture in words, for who cannot see it."""
    told = [
        f"predicted {one.predicted:.1%}, observed {one.observed:.1%} ({one.low:.1%} to {one.high:.1%}), "
        f"{one.rows:,} rows"
        for one in bins
    ]
    return "Predicted and observed risk with 95 % intervals. " + ("; ".join(told) or "Not measured") + "."


def _scale(bins: Sequence[CalibrationBin]) -> tuple[float, float]:
    """The first scale that holds every point, and nine tenths of the way to the end of its interval."""
    reach = max(max(one.predicted, one.observed, 0.9 * one.high) for one in bins)
    return next((scale for scale in _SCALES if reach <= scale[0]), _SCALES[-1])


def _heading(title: str) -> list[str]:
    lines = wrap(_clean(title), _LETTERS, max_lines=2, placeholder=" …")
    first = 44 if len(lines) < 2 else 28
    return [
        _text(_LEFT, first + 20 * number, line, 15, anchor="start", weight="600")
        for number, line in enumerate(lines)
    ]


def _axes(end: float, step: float) -> list[str]:
    """Grid, marks, labels and the diagonal of perfect calibration."""
    drawn = []
    for mark in range(round(end / step) + 1):
        at = mark * step / end * _SIDE
        label = f"{100 * mark * step:.0f} %"
        drawn += [
            _line(_LEFT, _BOTTOM - at, _RIGHT, _BOTTOM - at, _GRID, 1),
            _line(_LEFT + at, _TOP, _LEFT + at, _BOTTOM, _GRID, 1),
            _text(_LEFT - 8, _BOTTOM - at + 4, label, 12, anchor="end", ink=_SOFT),
            _text(_LEFT + at, _STRIP_BOTTOM + 17, label, 12, ink=_SOFT),
        ]
    middle = _TOP + _SIDE / 2
    drawn += [
        _line(_LEFT, _BOTTOM, _RIGHT, _TOP, _SOFT, 1.5, ' stroke-dasharray="6 5"'),
        _text(_RIGHT - 34, _TOP + 22, "ideal", 12, anchor="end", ink=_SOFT),
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="{_INK}" stroke-width="1.2"/>',
        _text(_LEFT + _SIDE / 2, _STRIP_BOTTOM + 40, "Predicted risk", 14),
        _text(
            20, middle, "Observed risk (95 % interval)", 14, extra=f' transform="rotate(-90 20 {middle:.1f})"'
        ),
    ]
    return drawn


def _points(bins: Sequence[CalibrationBin], end: float) -> list[str]:
    drawn = []
    places = [(_across(one.predicted, end), _up(one.observed, end)) for one in bins]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    drawn.append(f'<path d="{path}" fill="none" stroke="{_BLUE}" stroke-width="1.2" stroke-opacity="0.45"/>')
    for one, (x, y) in zip(bins, places, strict=True):
        low, high = _up(one.low, end), _up(min(one.high, end), end)
        drawn.append(_line(x, low, x, high, _BLUE, 1.8))
        drawn.append(_line(x - 4, low, x + 4, low, _BLUE, 1.8))
        if one.high <= end:  # an interval that is cut at the edge has no cap there
            drawn.append(_line(x - 4, high, x + 4, high, _BLUE, 1.8))
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_BLUE}" stroke="#ffffff" stroke-width="1.5"/>'
        )
    return drawn


def _strip(bins: Sequence[CalibrationBin], end: float) -> list[str]:
    """How many rows stand behind each point."""
    most = max(one.rows for one in bins)
    places = [_across(one.predicted, end) for one in bins]
    gap = min((right - left for left, right in pairwise(places)), default=20.0)
    width = min(16.0, max(2.0, 0.8 * gap))
    height = _STRIP_BOTTOM - _STRIP_TOP
    drawn = [
        _line(_LEFT, _STRIP_BOTTOM, _RIGHT, _STRIP_BOTTOM, _INK, 1.2),
        _text(_LEFT - 8, _STRIP_TOP + 10, f"{most:,}", 12, anchor="end", ink=_SOFT),
        _text(_LEFT - 8, _STRIP_BOTTOM, "rows", 12, anchor="end", ink=_SOFT),
    ]
    for one, x in zip(bins, places, strict=True):
        tall = max(1.0, one.rows / most * height)
        left = min(max(x - width / 2, _LEFT), _RIGHT - width)
        drawn.append(
            f'<rect x="{left:.1f}" y="{_STRIP_BOTTOM - tall:.1f}" width="{width:.1f}" height="{tall:.1f}" '
            f'fill="{_BLUE}" fill-opacity="0.55"/>'
        )
    return drawn


def _across(risk: float, end: float) -> float:
    return _LEFT + risk / end * _SIDE


def _up(risk: float, end: float) -> float:
    return _BOTTOM - risk / end * _SIDE


def _line(x1: float, y1: float, x2: float, y2: float, ink: str, width: float, extra: str = "") -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{ink}" stroke-width="{width}"{extra}/>'


def _text(
    x: float,
    y: float,
    words: str,
    size: int,
    anchor: str = "middle",
    ink: str = _INK,
    weight: str = "400",
    extra: str = "",
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} font-weight="{weight}" fill="{ink}"{extra}>{escape(words)}</text>'


def _clean(text: str) -> str:
    """One line, without characters that XML forbids."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())
