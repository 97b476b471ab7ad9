"""Figures as files: each as PNG and PDF, or in words why there is none. One style for all.

Drawn without a display. The same facts give the same bytes, so that a report written anew does not differ.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmap.files.durable import make_folder, write_durably
from fedmap_lab.report.facts.shown_methods import ShownMethod

mpl.use("Agg")

P = ParamSpec("P")
INK, MUTED, GRID = "#1f2933", "#66717d", "#e4e7eb"
DPI = 150
WIDTH = 9.6  # inches: text of 9 points is then readable on screen and on A4
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.fontsize": 8,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Drawn:
    """A figure with what a reader has to know to read it; or, without one, why it is not there."""

    name: str  # of its files
    title: str
    words: str
    figure: Figure | None = None


def drawing(name: str, title: str) -> Callable[[Callable[P, tuple[Figure, str] | str]], Callable[P, Drawn]]:
    """Of a function that gives a figure and its caption, or the reason why there is none."""

    def named(draw: Callable[P, tuple[Figure, str] | str]) -> Callable[P, Drawn]:
        @wraps(draw)
        def drawn(*arguments: P.args, **more: P.kwargs) -> Drawn:
            found = draw(*arguments, **more)
            if isinstance(found, str):
                return Drawn(name, title, found)
            figure, caption = found
            return Drawn(name, title, caption, figure)

        return drawn

    return named


@dataclass(frozen=True)
class Shown:
    """A figure as the page shows it; `png` is empty where only the reason is said."""

    name: str
    title: str
    words: str
    png: str = ""  # base64
    width: float = 100.0  # per cent of the page, so that text has one size in all figures


def in_style() -> AbstractContextManager[None]:
    """Everything that is drawn and saved inside has the report's look; what others draw is left alone."""
    return mpl.rc_context(_STYLE)  # type: ignore[arg-type]


def new_figure(height: float, width: float = WIDTH) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def style(axes: Axes, title: str = "", x: str = "", y: str = "", grid: str = "y") -> None:
    """Quiet axes: no box, a light grid behind."""
    axes.set_title(title, loc="left", color=INK, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid in ("x", "y", "both"):
        axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]


def line_of(method: ShownMethod) -> dict[str, Any]:
    """How a line of a method looks everywhere."""
    strong = method.role == "fedmap"
    return {
        "color": method.colour,
        "linestyle": method.line,
        "marker": method.marker,
        "label": method.label,
        "zorder": 4 if strong else 3,
        "markersize": 5 if strong else 4,
    }


def shortened(name: str, most: int = 22) -> str:
    """A name that fits beside a figure."""
    return name if len(name) <= most else name[: most - 1] + "…"


def save_pictures(drawn: Iterable[Drawn], folder: Path) -> tuple[Shown, ...]:
    """FOLDER/NAME.png and .pdf of each. What an earlier report drew and this one does not is removed."""
    make_folder(folder, mode=0o755)
    shown, written = [], set()
    for one in drawn:
        if one.figure is None:
            shown.append(Shown(one.name, one.title, one.words))
            continue
        one.figure.draw_without_rendering()
        one.figure.set_layout_engine("none")  # laid out once, not again for each format
        png = _bytes(one.figure, "png")
        write_durably(folder / f"{one.name}.png", png, mode=0o644)
        write_durably(folder / f"{one.name}.pdf", _bytes(one.figure, "pdf"), mode=0o644)
        written |= {f"{one.name}.png", f"{one.name}.pdf"}
        width = round(min(100.0, 100 * one.figure.get_figwidth() / WIDTH), 1)
        shown.append(Shown(one.name, one.title, one.words, base64.b64encode(png).decode(), width))
    for found in shown:
        for path in (folder / f"{found.name}.png", folder / f"{found.name}.pdf"):
            if path.name not in written:
                path.unlink(missing_ok=True)
    return tuple(shown)


def _bytes(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    metadata = {"Software": None} if kind == "png" else {"CreationDate": None, "Producer": None}
    figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)
    return file.getvalue()
