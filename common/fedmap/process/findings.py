"""What the `doctor` of a program finds: one line for each check, with the next step where it is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedmap.errors import FedmapError

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what was found, and what to do about it."""

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
    return failed(name, error.message, error.hint)


def any_failed(found: Iterable[Finding]) -> bool:
    return any(finding.verdict == "fail" for finding in found)
