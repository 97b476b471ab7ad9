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

_LABELS = {
    "individual": "Alone",
    "pooled": "Pooled (oracle)",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "qfedavg": "q-FedAvg",
    "feddyn": "FedDyn",
    "ditto": "Ditto",
    "pfedme": "pFedMe",
    "pfedbayes": "pFedBayes",
    "pfedgp": "pFedGP",
    "pfedfda": "pFedFDA",
    "fedmap": "FedMAP",
    "fedmap-paper": "FedMAP (as published)",
}
_COLOURS = {
    "individual": "#4d4d4d",
    "pooled": "#999999",
    "fedavg": "#e69f00",
    "fedprox": "#d55e00",
    "scaffold": "#cc79a7",
    "qfedavg": "#b8a800",
    "feddyn": "#8c510a",
    "ditto": "#009e73",
    "pfedme": "#882255",
    "pfedbayes": "#44aa99",
    "pfedgp": "#aa4499",
    "pfedfda": "#999933",
    "fedmap": "#0072b2",
}
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
    if method == FEDMAP:
        return ShownMethod(method, _LABELS[method], "fedmap", _COLOURS[method], "o", "-")
    if method.startswith(FEDMAP + "-"):
        place = ABLATIONS.index(method) if method in ABLATIONS else len(ABLATIONS)
        return ShownMethod(
            method,
            _LABELS.get(method, f"FedMAP ({method.removeprefix(FEDMAP + '-').replace('-', ' ')})"),
            "variant",
            _VARIANTS[place % len(_VARIANTS)],
            _MARKERS[1 + place % (len(_MARKERS) - 1)],
            _LINES[1 + place % (len(_LINES) - 1)],
        )
    role: Role = "alone" if method == ALONE else "oracle" if method == ORACLE else "baseline"
    place = list(_LABELS).index(method) if method in _LABELS else len(_LABELS)
    return ShownMethod(
        method,
        _LABELS.get(method, method),
        role,
        _COLOURS.get(method, "#777777"),
        _MARKERS[1 + place % (len(_MARKERS) - 1)],
        _LINES[1 + place % (len(_LINES) - 1)],
    )


def is_contender(method: str) -> bool:
    """Whether a method can win: not the oracle, and not a variant, which is FedMAP once more."""
    return shown(method).role not in ("oracle", "variant")
