"""NOTICE names every distribution under a copyleft licence that an installation of ours brings along."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
_COPYLEFT = re.compile(r"\b(?:A|L)?GPL|\bMPL|\bEUPL|\bCDDL|\bEPL")
INSTALLED = ("fedmap-site", "fedmap-aggregator[postgres]", "fedmap-lab")


def brought_along(wanted: str) -> set[str]:
    """Every distribution that `pip install` brings for what is wanted, as they are installed here."""
    seen: set[tuple[str, str]] = set()
    whole = Requirement(wanted)
    waiting = [(whole.name, extra) for extra in ("", *whole.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), one) for one in ("", *needed.extras)]
    return {name for name, _ in seen}


def licence_of(name: str) -> str:
    told = distribution(name).metadata
    stated: list[str] = [*(told.get_all("License-Expression") or ()), *(told.get_all("License") or ())]
    classified = [line for line in told.get_all("Classifier") or () if line.startswith("License")]
    return " ".join([*(text.partition("\n")[0] for text in stated), *classified])


@pytest.mark.parametrize("wanted", INSTALLED)
def test_no_copyleft_licence_travels_unnamed(wanted: str) -> None:
    found = {name: licence_of(name) for name in brought_along(wanted)}
    assert len(found) > 15
    for name, stated in found.items():
        if _COPYLEFT.search(stated):
            (line,) = re.findall(rf"^  {re.escape(name)} +(\S+)", NOTICE, re.MULTILINE)
            assert line in stated, (name, line, stated)
