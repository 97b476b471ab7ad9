"""How a method is called and drawn: the same name, colour, marker and line in every figure and table.

Colours are Okabe and Ito's, which stay apart for colour-blind readers; on paper without colour, markers and
line styles tell methods apart. FedMAP (as the plan has it) is always the strong blue, its variants are
lighter blues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedmap_lab.methods.names import ABLATIONS

FEDMAP, ALONE, ORACLE = "fedmap", "individual", "pooled"
Role = Literal["alone", "oracle", "baseline", "fedmap", "variant"]

_KNOWN = {
    "individual": ("Alone", "#4d4d4d"),
    "pooled": ("Pooled (oracle)", "#999999"),
    "fedavg": ("FedAvg", "#e69f00"),
    "fedprox": ("FedProx", "#d55e00"),
    "scaffold": ("SCAFFOLD", "#cc79a7"),
    "qfedavg": ("q-FedAvg", "#b8a800"),
    "feddyn": ("FedDyn", "#8c510a"),
    "ditto": ("Ditto", "#009e73"),
    "pfedme": ("pFedMe", "#882255"),
    "pfedbayes": ("pFedBayes", "#44aa99"),
    "pfedgp": ("pFedGP", "#aa4499"),
    "pfedfda": ("pFedFDA", "#999933"),
    "fedmap": ("FedMAP", "#0072b2"),
}
_GREY = "#777777"
_VARIANTS = ("#56b4e9", "#5b7fb5", "#8fa8d6", "#3f8f9f", "#7a6fb0", "#9ecae1", "#2f5f8f", "#a3b8cc")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class ShownMethod:
    name: str
    label: str
    role: Role
    colour: str
    marker: str
    line: str


def shown(method: str) -> ShownMethod:
    """Also for a method that this table does not know: its own name, and a grey."""
    label, colour = _KNOWN.get(method, (method, _GREY))
    if method == FEDMAP:
        return ShownMethod(method, label, "fedmap", colour, "o", "-")
    role: Role = "alone" if method == ALONE else "oracle" if method == ORACLE else "baseline"
    known = tuple(_KNOWN)
    if method.startswith(FEDMAP + "-"):
        role, known = "variant", ABLATIONS
        change = method.removeprefix(FEDMAP + "-").replace("-", " ")
        label = f"FedMAP ({'as published' if change == 'paper' else change})"
    place = known.index(method) if method in known else len(known) + (role != "variant")
    if role == "variant":
        colour = _VARIANTS[place % len(_VARIANTS)]
    marker = _MARKERS[1 + place % (len(_MARKERS) - 1)]
    return ShownMethod(method, label, role, colour, marker, _LINES[1 + place % (len(_LINES) - 1)])


def is_contender(method: str) -> bool:
    """Whether a method can win: not the oracle, and not a variant, which is FedMAP once more."""
    return shown(method).role not in ("oracle", "variant")
