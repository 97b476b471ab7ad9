"""The deletion of a study's content in one transaction: its rows go, and what was begun is remembered.

Files go afterwards, and only those that no row names any more. What may be deleted, and when, is decided
elsewhere. The audit log is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import Connection, delete, func, insert, select, update

from fedmap_aggregator.store.database.tables import answers, deletions, refusals, results
from fedmap_aggregator.store.rows import DeletionRow

_CONTENT = (answers, results, refusals)


class DeletionRecords:
    """One deletion per study at most: a study that has ended gets no new content."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def content(self, study: str) -> Mapping[str, int]:
        """How many rows of each kind a deletion would take."""
        return {
            table.name: self._connection.execute(
                select(func.count()).select_from(table).where(table.c.study == study)
            ).scalar_one()
            for table in _CONTENT
        }

    def answer_digests(self, study: str) -> tuple[str, ...]:
        found = select(answers.c.digest).where(answers.c.study == study).order_by(answers.c.seq)
        return tuple(self._connection.scalars(found))

    def begin(self, deletion: DeletionRow) -> None:
        """The rows are gone and the deletion stands, together."""
        for table in _CONTENT:
            self._connection.execute(delete(table).where(table.c.study == deletion.study))
        self._connection.execute(insert(deletions).values(asdict(deletion)))

    def get(self, study: str) -> DeletionRow | None:
        row = self._connection.execute(select(deletions).where(deletions.c.study == study)).first()
        return None if row is None else DeletionRow(**row._mapping)

    def unfinished(self) -> tuple[str, ...]:
        """Studies whose deletion was begun and interrupted, sorted."""
        found = select(deletions.c.study).where(deletions.c.finished_at.is_(None))
        return tuple(sorted(self._connection.scalars(found)))

    def finish(self, study: str, certificate: str, now: int) -> None:
        self._connection.execute(
            update(deletions)
            .where(deletions.c.study == study, deletions.c.finished_at.is_(None))
            .values(certificate=certificate, finished_at=now)
        )
