"""The signed list of withdrawn bundles, and what makes a release stand.

The list is a small JSON file that anybody may carry and nobody may change. It holds all withdrawals so far
and has a higher serial than the one before. Where the highest serial seen is kept, and how a list travels,
is the caller's. Whether a release still stands, steps (5) to (7) of `verification`, is asked here too:
each function gives its finding in words, or a `StateError`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import AfterValidator

from fedmap.bundles.manifest import BundleName, Manifest, Moment, day
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


CLOCK_SLACK_MS = 24 * 3600 * 1000
"""How far a clinic's clock may be behind the release: a wrong time zone is no reason to refuse a bundle."""


def check_expiry(manifest: Manifest, now_unix_ms: int) -> str:
    released, expires = day(manifest.released_unix_ms), day(manifest.expires_unix_ms)
    if now_unix_ms >= manifest.expires_unix_ms:
        raise StateError(
            f"it expired on {expires}",
            hint="Download the newest version. If there is none, the federation no longer stands behind "
            "this model: do not use it.",
        )
    if manifest.released_unix_ms > now_unix_ms + CLOCK_SLACK_MS:
        raise StateError(
            f"it was released on {released}, which has not come yet",
            hint="Set this computer's clock; it seems to be behind. If it is right, do not use the file.",
        )
    return f"released on {released}, to be used before {expires}"


def check_withdrawal(manifest: Manifest, withdrawals: Withdrawals | None) -> str:
    if withdrawals is None:
        return "no list of withdrawn bundles is known here, so none was asked"
    found = withdrawals.find(manifest.name, manifest.version)
    if found is not None:
        raise StateError(
            f"it was withdrawn on {day(found.at_unix_ms)}: {found.reason}",
            hint="Do not use it. Download the newest version, and look at what was decided with this one.",
        )
    return f"not on list {withdrawals.serial} of {day(withdrawals.issued_unix_ms)}"


def check_rollback(manifest: Manifest, installed: int | None) -> str:
    if installed is None:
        return f"version {manifest.version}; no other was said to be installed"
    if manifest.version < installed:
        raise StateError(
            f"it is version {manifest.version}, and version {installed} was installed before",
            hint="Use the newer version. Somebody may have sent you an old one for the faults it has.",
        )
    return f"version {manifest.version}; the highest installed before is {installed}"
