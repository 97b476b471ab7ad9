"""One finding of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, what was found, and what to do about it."""

    name: str
    status: Status
    finding: str
    next_step: str = ""


def fine(name: str, finding: str) -> Check:
    return Check(name, "ok", finding)


def warned(name: str, finding: str, next_step: str) -> Check:
    return Check(name, "warn", finding, next_step)


def failed(name: str, finding: str, next_step: str) -> Check:
    return Check(name, "fail", finding, next_step)
