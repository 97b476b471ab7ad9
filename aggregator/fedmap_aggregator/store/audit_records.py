"""The audit log in the database: entries go at the end, each hashed over the one before (fedmap.trust.audit).

A chain cannot tell that its newest entries were cut off; the head, written down elsewhere, can.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from fedmap.errors import IntegrityError
from fedmap.trust.audit import AuditEntry, make_entry, verify_chain
from fedmap_aggregator.store.database.tables import audit, storable
from fedmap_aggregator.store.rows import AuditHead

_AT_ONCE = 1000


class AuditRecords:
    """The one chain of this federation's centre."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def append(
        self, actor: str, action: str, subject: str, detail: Mapping[str, str], now: int
    ) -> AuditEntry:
        """Adds one entry. It counts only if the transaction does, so that log and deed never differ."""
        entry = make_entry(
            self.newest(),
            at_unix_ms=now,
            actor=storable(actor),
            action=storable(action),
            subject=storable(subject),
            detail={storable(name): storable(value) for name, value in detail.items()},
        )
        self._connection.execute(
            insert(audit).values(
                seq=entry.seq,
                at_unix_ms=entry.at_unix_ms,
                actor=entry.actor,
                action=entry.action,
                subject=entry.subject,
                detail_json=json.dumps(dict(entry.detail), sort_keys=True),
                previous=entry.previous,
                hash=entry.hash,
            )
        )
        return entry

    def newest(self) -> AuditEntry | None:
        found = self._connection.execute(select(audit).order_by(audit.c.seq.desc()).limit(1)).first()
        return None if found is None else _entry(found)

    def entries(self) -> Iterator[AuditEntry]:
        """All entries from the first on; a long log is never in memory as a whole."""
        chosen = select(audit).order_by(audit.c.seq).limit(_AT_ONCE)
        found = self._connection.execute(chosen).all()
        while found:
            yield from map(_entry, found)
            found = self._connection.execute(chosen.where(audit.c.seq > found[-1].seq)).all()

    def last_about(self, subject: str) -> int | None:
        """When the newest entry about a subject was made (unix ms)."""
        return self._connection.execute(
            select(func.max(audit.c.at_unix_ms)).where(audit.c.subject == subject)
        ).scalar()

    def verify(self) -> AuditHead:
        """Checks the whole chain; IntegrityError names the first entry that was changed."""
        count = self._connection.execute(select(func.count()).select_from(audit)).scalar_one()
        return AuditHead(count, verify_chain(self.entries()))


def _entry(row: Row[Any]) -> AuditEntry:
    detail = _detail(row.detail_json)
    if detail is None:
        raise IntegrityError(
            f"the audit log was changed at entry {row.seq}: its detail cannot be read",
            hint="Keep the database as it is, and compare with a backup.",
        )
    return AuditEntry(
        seq=row.seq,
        at_unix_ms=row.at_unix_ms,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        detail=detail,
        previous=row.previous,
        hash=row.hash,
    )


def _detail(text: str) -> dict[str, str] | None:
    try:
        read = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
