"""The signed list of withdrawn bundles: a small JSON file that anybody may carry and nobody may change.

Each list holds all withdrawals so far and has a higher serial than the one before. Where the highest serial
seen is kept, and how a list travels, is the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt
from pydantic import ValidationError

from fedmap.bundles.manifest import BundleName, Moment
from fedmap.errors import IncompatibleError, IntegrityError, LimitError, NotAllowedError, StateError
from fedmap.scoring.figures import Short
from fedmap.study.plan.sections import Section
from fedmap.trust.signing import (
    FORMAT,
    WITHDRAWALS_KIND,
    Signature,
    parse_signature,
    signature_of,
    verify_signature,
)

MOST_BYTES = 4 << 20
_DAMAGED = "Get the list again from the federation; the one that was known before stays in force."


@dataclass(frozen=True)
class Withdrawal:
    """One release that must not be used any more."""

    name: str
    version: int
    reason: str
    at_unix_ms: int


@dataclass(frozen=True)
class Withdrawals:
    """All that was withdrawn up to a moment."""

    serial: int
    issued_unix_ms: int
    entries: tuple[Withdrawal, ...] = ()

    def find(self, name: str, version: int) -> Withdrawal | None:
        """The withdrawal of this release, if there is one."""
        return next((one for one in self.entries if (one.name, one.version) == (name, version)), None)


class _Entry(Section):
    name: BundleName
    version: Annotated[int, Gt(0)]
    reason: Short
    at_unix_ms: Moment


class _List(Section):
    format: Literal[1] = 1
    serial: Annotated[int, Gt(0)]
    issued_unix_ms: Moment
    entries: tuple[_Entry, ...]


def write_withdrawals(withdrawals: Withdrawals, release_key_pem: bytes) -> bytes:
    """The signed file; entries in the order of name and version."""
    content = _canonical(withdrawals)
    _parsed(content)  # what a reader would refuse is never signed
    return _signed_file(content, signature_of(release_key_pem, WITHDRAWALS_KIND, content))


def read_withdrawals(data: bytes, fingerprints: Collection[str]) -> Withdrawals:
    """The list, if one of these keys signed it and every byte is as it was written."""
    if len(data) > MOST_BYTES:
        raise LimitError(
            f"the list of withdrawn bundles is larger than {MOST_BYTES >> 20} MiB", hint=_DAMAGED
        )
    try:
        form = json.loads(data)
    except (ValueError, RecursionError):
        raise _damaged("it cannot be read as JSON") from None
    match form:
        case {"format": int(other)} if other != FORMAT:
            raise IncompatibleError(
                f"the list of withdrawn bundles is not of format {FORMAT}, the one that this software reads",
                hint="Update this software.",
            )
        case {"list": str(text), "signed": dict(signed)}:
            content = _encoded(text)
        case _:
            raise _damaged("it is not in its form")
    try:
        signature = parse_signature(json.dumps(signed, sort_keys=True, separators=(",", ":")).encode())
        verify_signature(signature, WITHDRAWALS_KIND, content, fingerprints)
    except (IntegrityError, NotAllowedError, IncompatibleError) as error:
        raise type(error)(f"the list of withdrawn bundles: {error.message}", hint=error.hint) from error
    if _signed_file(content, signature) != data:
        raise _damaged("it is not in its form")
    return _parsed(content)


def newer_of(known: Withdrawals | None, offered: Withdrawals) -> Withdrawals:
    """The list to keep. An older one, or another one with the same serial, is refused: it hides something."""
    if known is None or offered.serial > known.serial or offered == known:
        return offered
    what = "is older" if offered.serial < known.serial else "is another one with the same serial"
    raise StateError(
        f"the list of withdrawn bundles, serial {offered.serial}, {what}: {known.serial} is known here",
        hint="The list that is known stays in force. Tell the operator: somebody may be hiding a withdrawal.",
    )


def _parsed(content: bytes) -> Withdrawals:
    try:
        found = _List.model_validate_json(content)
    except ValidationError:
        raise _damaged("its entries are not in their form") from None
    entries = tuple(Withdrawal(**dict(entry)) for entry in found.entries)
    withdrawals = Withdrawals(found.serial, found.issued_unix_ms, entries)
    keys = {(entry.name, entry.version) for entry in entries}
    if len(keys) != len(entries) or _canonical(withdrawals) != content:
        raise _damaged("its entries are not in their form")
    return withdrawals


def _canonical(withdrawals: Withdrawals) -> bytes:
    form = {
        "format": FORMAT,
        "serial": withdrawals.serial,
        "issued_unix_ms": withdrawals.issued_unix_ms,
        "entries": [
            {"name": one.name, "version": one.version, "reason": one.reason, "at_unix_ms": one.at_unix_ms}
            for one in sorted(withdrawals.entries, key=lambda one: (one.name, one.version))
        ],
    }
    return _encoded(json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def _signed_file(content: bytes, signature: Signature) -> bytes:
    form = {"format": FORMAT, "list": content.decode(), "signed": json.loads(signature.to_json())}
    return _encoded(json.dumps(form, sort_keys=True, indent=1, ensure_ascii=False) + "\n")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _damaged("its text is not Unicode") from None


def _damaged(reason: str) -> IntegrityError:
    return IntegrityError(f"the list of withdrawn bundles cannot be used: {reason}", hint=_DAMAGED)
