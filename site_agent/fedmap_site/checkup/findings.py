"""What `doctor` finds: one line per check, with the next step where something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedmap.errors import FedmapError

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, what was found, and what to do about it."""

    name: str
    verdict: Verdict
    message: str
    hint: str = ""


def passed(name: str, message: str) -> Finding:
    return Finding(name, "ok", message)


def warned(name: str, message: str, hint: str) -> Finding:
    return Finding(name, "warn", message, hint)


def failed(name: str, message: str, hint: str) -> Finding:
    return Finding(name, "fail", message, hint)


def failed_by(name: str, error: FedmapError) -> Finding:
    """An error of the tree as a finding."""
    return Finding(name, "fail", error.message, error.hint)
