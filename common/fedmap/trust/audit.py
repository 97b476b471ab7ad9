"""The audit log as a chain: each entry holds the hash of the one before, so that nothing can be changed,
removed from the middle or put in later without a trace.

Pure: entries in, entries out. Where they are kept, and in what form, is the store's business. The chain alone
does not show that its end was cut off: for that its head must be written down elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from fedmap.errors import IntegrityError

START = "0" * 64
"""Stands for the hash before the first entry, and is the head of an empty chain."""


@dataclass(frozen=True)
class AuditEntry:
    """One thing that happened. Names, counts and digests only."""

    seq: int  # from 1, without gaps
    at_unix_ms: int
    actor: str
    action: str
    subject: str
    detail: Mapping[str, str]
    previous: str  # hash of the entry before
    hash: str  # of all the fields above

    def to_json(self) -> str:
        """One line, the same for the same entry."""
        return json.dumps({**_content(self), "hash": self.hash}, sort_keys=True, separators=(",", ":"))


def make_entry(
    last: AuditEntry | None,
    *,
    at_unix_ms: int,
    actor: str,
    action: str,
    subject: str,
    detail: Mapping[str, str],
) -> AuditEntry:
    """The entry that follows `last`; None for the first one."""
    draft = AuditEntry(
        seq=last.seq + 1 if last else 1,
        at_unix_ms=at_unix_ms,
        actor=actor,
        action=action,
        subject=subject,
        detail=MappingProxyType(dict(detail)),
        previous=last.hash if last else START,
        hash="",
    )
    return replace(draft, hash=entry_hash(draft))


def parse_entry(line: str) -> AuditEntry:
    """An entry from its JSON line; `IntegrityError` where the line is not one."""
    try:
        read = json.loads(line)
        detail = read.pop("detail")
        if not all(isinstance(item, str) for pair in detail.items() for item in pair):
            raise TypeError("detail")
        entry = AuditEntry(detail=MappingProxyType(detail), **read)
        texts = (entry.actor, entry.action, entry.subject, entry.previous, entry.hash)
        numbers = (entry.seq, entry.at_unix_ms)
        if not all(isinstance(text, str) for text in texts) or not all(type(n) is int for n in numbers):
            raise TypeError("fields")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError("a line of the audit log cannot be read", hint=_HINT) from error
    return entry


def verify_chain(entries: Iterable[AuditEntry]) -> str:
    """The head of a sound chain; `IntegrityError` names the first entry that does not fit."""
    head = START
    for seq, entry in enumerate(entries, start=1):
        if entry.seq != seq:
            raise _broken(seq, f"entry {entry.seq} stands in its place")
        if entry.previous != head:
            raise _broken(seq, "it does not follow from the entry before")
        if entry.hash != entry_hash(entry):
            raise _broken(seq, "its content was changed")
        head = entry.hash
    return head


def entry_hash(entry: AuditEntry) -> str:
    """SHA-256 over every field but the hash itself."""
    text = json.dumps(_content(entry), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


_HINT = "Keep this file as it is, and compare it with a backup: someone or something has changed it."


def _content(entry: AuditEntry) -> dict[str, object]:
    form = {**vars(entry), "detail": dict(entry.detail)}
    del form["hash"]
    return form


def _broken(seq: int, why: str) -> IntegrityError:
    return IntegrityError(f"the audit log is broken at entry {seq}: {why}", hint=_HINT)
