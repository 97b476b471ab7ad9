"""The signed list of withdrawn bundles: a small JSON file that anybody may carry and nobody may change.

Each list holds all withdrawals so far and has a higher serial than the one before. Where the highest serial
seen is kept, and how a list travels, is the caller's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import AfterValidator

from fedmap.bundles.manifest import BundleName, Moment
from fedmap.errors import StateError
from fedmap.scoring.figures import Short
from fedmap.study.plan.sections import Section
from fedmap.trust.envelope import Envelope

LIST = Envelope(
    b"fedmap-withdrawals-1\n",
    "list",
    "the list of withdrawn bundles",
    most_bytes=4 << 20,
    hint="Get the list again from the federation; the one that was known before stays in force.",
)


class Withdrawal(Section):
    """One release that must not be used any more."""

    name: BundleName
    version: Annotated[int, Gt(0)]
    reason: Short
    at_unix_ms: Moment


def _each_once_in_order(entries: tuple[Withdrawal, ...]) -> tuple[Withdrawal, ...]:
    by_release = {(one.name, one.version): one for one in entries}
    if len(by_release) != len(entries):
        raise ValueError("a release is withdrawn twice")
    return tuple(by_release[release] for release in sorted(by_release))


class Withdrawals(Section):
    """All that was withdrawn up to a moment, in the order of name and version."""

    format: Literal[1] = 1
    serial: Annotated[int, Gt(0)]
    issued_unix_ms: Moment
    entries: Annotated[tuple[Withdrawal, ...], AfterValidator(_each_once_in_order)] = ()

    def find(self, name: str, version: int) -> Withdrawal | None:
        """The withdrawal of this release, if there is one."""
        return next((one for one in self.entries if (one.name, one.version) == (name, version)), None)


def write_withdrawals(withdrawals: Withdrawals, release_key_pem: bytes) -> bytes:
    """The signed file."""
    return LIST.sign_by_release_key(withdrawals, release_key_pem)


def read_withdrawals(data: bytes, fingerprints: Collection[str]) -> Withdrawals:
    """The list, if one of these keys signed it and every byte is as it was written."""
    opened = LIST.open(data)
    opened.verify_release_key(fingerprints)
    return opened.content(Withdrawals)


def newer_of(known: Withdrawals | None, offered: Withdrawals) -> Withdrawals:
    """The list to keep. An older one, or another one with the same serial, is refused: it hides something."""
    if known is None or offered.serial > known.serial or offered == known:
        return offered
    what = "is older" if offered.serial < known.serial else "is another one with the same serial"
    raise StateError(
        f"the list of withdrawn bundles, serial {offered.serial}, {what}: {known.serial} is known here",
        hint="The list that is known stays in force. Tell the operator: somebody may be hiding a withdrawal.",
    )
