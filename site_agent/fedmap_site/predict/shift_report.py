"""The verdict on a site's rows against the federation's: in words for people, as JSON for machines.

How it is reached is `fedmap.shift.check`; here it is only told, and turned into advice that fits what the
site has: a bundle of tier 2, one of tier 3, or a personal model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmap.errors import StateError
from fedmap.files.durable import write_durably
from fedmap_site.predict.rows import ReadyModel

if TYPE_CHECKING:
    from fedmap.shift.check import ShiftReport

SUFFIX = ".shift.json"
_SHOWN = 40  # inputs of a table


def advice(report: ShiftReport, ready: ReadyModel) -> str:
    """What to do next, in a sentence."""
    if report.verdict == "predict":
        return "Predict: these rows look like the federation's."
    if report.verdict == "do_not_use":
        return (
            "Do not use: these rows are too far from the federation's. Check units and coding of the columns "
            "named; if they are right, the model was not made for these people."
        )
    if ready.personal:
        return "Predict with care: the rows differ from the federation's; this model was fine-tuned here."
    if ready.tier == 2:
        return "Fine-tune first: fedmap-site personalise, on rows of your own with known outcomes."
    return "Fine-tune first: ask the federation for the tier-2 bundle of this study."


def shift_lines(report: ShiftReport, ready: ReadyModel) -> tuple[str, ...]:
    """For a terminal."""
    return (*report.sentences, advice(report, ready))


def shift_table(report: ShiftReport, ready: ReadyModel) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Columns and rows for a terminal, the largest differences first; of many inputs only those."""
    if _too_few_to_show(report, ready):
        return ("input", "figures"), [("all", "not shown: too few rows")]
    ordered = sorted(report.inputs, key=lambda one: (not one.alarm, -abs(one.standardised_difference)))
    return ("input", "difference (SD)", "PSI", "Wasserstein (SD)", "verdict"), [
        (
            one.name,
            f"{one.standardised_difference:+.2f}",
            f"{one.psi:.3f}",
            f"{one.wasserstein:.2f}",
            "grossly different" if one.gross else "different" if one.alarm else "as in the federation",
        )
        for one in ordered[:_SHOWN]
    ]


def shift_form(report: ShiftReport, ready: ReadyModel) -> dict[str, Any]:
    """For machines: figures per input and jointly, the words, and the model it was judged for."""
    figures = asdict(report)
    if _too_few_to_show(report, ready):
        figures |= {"inputs": [], "joint": None}
    return {
        "format": 1,
        "model": ready.name,
        "bundle_sha256": ready.bundle_sha256,
        "personal": ready.personal,
        "advice": advice(report, ready),
        **figures,
    }


def write_shift(report: ShiftReport, ready: ReadyModel, beside: Path) -> Path:
    """Writes OUT.shift.json beside the file of predictions."""
    path = beside.with_name(beside.name + SUFFIX)
    text = json.dumps(shift_form(report, ready), indent=1, ensure_ascii=False)
    write_durably(path, text.encode() + b"\n")
    return path


def _too_few_to_show(report: ShiftReport, ready: ReadyModel) -> bool:
    """The mean of one row is that row."""
    return report.rows < ready.plan.limits.min_cell


def no_reference(ready: ReadyModel) -> StateError:
    return StateError(
        f"{ready.name} carries no statistics to compare with",
        hint="Ask for a newer release; until then compare your data with the model card by hand.",
    )
