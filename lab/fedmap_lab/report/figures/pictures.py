"""Figures as files: each as PNG and PDF, or in words why there is none. One style for all.

Drawn without a display. The same facts give the same bytes, so that a report written anew does not differ.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmap.files.durable import make_folder, write_durably

mpl.use("Agg")

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
class Picture:
    """A figure with what a reader has to know: one sentence on how to read it."""

    name: str  # of its files
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class NoPicture:
    """Why a figure is not there."""

    name: str
    title: str
    reason: str


Drawn = Picture | NoPicture


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


def shortened(name: str, most: int = 22) -> str:
    """A name that fits beside a figure."""
    return name if len(name) <= most else name[: most - 1] + "…"


def save_pictures(drawn: Iterable[Drawn], folder: Path) -> tuple[Shown, ...]:
    """FOLDER/NAME.png and .pdf of each. What an earlier report drew and this one does not is removed."""
    make_folder(folder, mode=0o755)
    shown, written = [], set()
    for one in drawn:
        if isinstance(one, NoPicture):
            shown.append(Shown(one.name, one.title, one.reason))
            continue
        one.figure.draw_without_rendering()
        one.figure.set_layout_engine("none")  # laid out once, not again for each format
        png = _bytes(one.figure, "png")
        write_durably(folder / f"{one.name}.png", png, mode=0o644)
        write_durably(folder / f"{one.name}.pdf", _bytes(one.figure, "pdf"), mode=0o644)
        written |= {f"{one.name}.png", f"{one.name}.pdf"}
        width = round(min(100.0, 100 * one.figure.get_figwidth() / WIDTH), 1)
        shown.append(Shown(one.name, one.title, one.caption, base64.b64encode(png).decode(), width))
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
