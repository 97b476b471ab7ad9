"""Studies, answers, results and refusals in one transaction.

A study is saved under the version it was loaded with, so that of two savers one wins and the other learns of
it. A row that names a blob is refused unless the blob is on the disk. What a state or an answer means is not
known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select, tuple_, update

from fedmap.errors import ConflictError, NotFoundError, StorageError
from fedmap_aggregator.store.blobs import BlobStore
from fedmap_aggregator.store.database.tables import answers, refusals, results, storable, studies
from fedmap_aggregator.store.rows import FINAL, AnswerRow, RefusalRow, ResultRow, StudyRow


class StudyRecords:
    """Terms and coordinator states."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, name: str, terms_json: str, terms_digest: str, state_json: str) -> StudyRow:
        """A new study, at version 1; ConflictError where the name is taken."""
        if self.get(name) is not None:
            raise ConflictError(
                f"a study called {name} exists already",
                hint="Give the new study another name; terms that sites have approved never change.",
            )
        row = StudyRow(name, terms_json, terms_digest, state_json, version=1)
        self._connection.execute(insert(studies).values(asdict(row)))
        return row

    def get(self, name: str) -> StudyRow | None:
        row = self._connection.execute(select(studies).where(studies.c.name == name)).first()
        return None if row is None else StudyRow(**row._mapping)

    def load(self, name: str) -> StudyRow:
        """As `get`; NotFoundError where there is none."""
        row = self.get(name)
        if row is None:
            raise NotFoundError(
                f"no study is called {name}", hint="List the studies, and check the spelling."
            )
        return row

    def list(self) -> tuple[StudyRow, ...]:
        """Sorted by name."""
        found = (StudyRow(**row._mapping) for row in self._connection.execute(select(studies)))
        return tuple(sorted(found, key=lambda study: study.name))

    def save(self, name: str, state_json: str, expected_version: int) -> int:
        """Replaces the state that was loaded at this version; returns the new version.

        ConflictError where another save came in between: load again and decide anew.
        """
        changed = self._connection.execute(
            update(studies)
            .where(studies.c.name == name, studies.c.version == expected_version)
            .values(state_json=state_json, version=studies.c.version + 1)
        )
        if changed.rowcount == 0:
            now_at = self.load(name).version
            raise ConflictError(
                f"the study {name} has moved on: version {expected_version} was expected, {now_at} is stored",
                hint="Try again. If it goes on, look for a second aggregator on the same database.",
            )
        return expected_version + 1


class AnswerRecords:
    """What the sites sent, every answer kept. For each site one answer to a task stands."""

    def __init__(self, connection: Connection, blobs: BlobStore) -> None:
        self._connection = connection
        self._blobs = blobs

    def put(self, answer: AnswerRow) -> AnswerRow:
        """Stores an answer once; a repeat changes nothing and gets the row of the first copy.

        ConflictError where another answer of the site has been accepted, or has abstained.
        """
        same = self.find(answer.study, answer.task, answer.site, answer.digest)
        if same is not None:
            return same
        standing = self.get(answer.study, answer.task, answer.site)
        if standing is not None and standing.status in FINAL:
            raise ConflictError(
                f"another answer of {answer.site} to {answer.task} was accepted before",
                hint="Nothing needs to be sent. If two agents run for this site, stop one of them.",
            )
        if answer.status in FINAL:
            _need_blob(self._blobs, answer.tensors_digest)
        row = replace(answer, reason=storable(answer.reason))
        self._connection.execute(insert(answers).values(asdict(row)))
        return row

    def find(self, study: str, task: str, site: str, digest: str) -> AnswerRow | None:
        """The first copy of exactly this answer."""
        row = self._connection.execute(
            _answers_to(study, task).where(answers.c.site == site, answers.c.digest == digest)
        ).first()
        return None if row is None else _answer(row)

    def get(self, study: str, task: str, site: str, attempt: int | None = None) -> AnswerRow | None:
        """The answer that stands (of one attempt): the accepted or abstaining one, else the newest."""
        chosen = _answers_to(study, task).where(answers.c.site == site)
        if attempt is not None:
            chosen = chosen.where(answers.c.attempt == attempt)
        standing = _standing(map(_answer, self._connection.execute(chosen)))
        return standing.get(site)

    def list(self, study: str, task: str) -> tuple[AnswerRow, ...]:
        """The answer that stands of each site, sorted by site."""
        standing = _standing(map(_answer, self._connection.execute(_answers_to(study, task))))
        return tuple(standing[site] for site in sorted(standing))

    def newest_accepted(
        self, study: str, newest_first: Sequence[str], sites: Collection[str]
    ) -> tuple[AnswerRow, ...]:
        """Of each site that has one, its accepted answer to the first of these tasks; sorted by site.

        An answer whose tensors were forgotten counts as none.
        """
        newest: dict[str, AnswerRow] = {}
        for task in newest_first:
            missing = set(sites) - newest.keys()
            if not missing:
                break
            chosen = _answers_to(study, task).where(
                answers.c.site.in_(missing), answers.c.status == "accepted", answers.c.tensors_digest != ""
            )
            newest |= {row.site: row for row in map(_answer, self._connection.execute(chosen))}
        return tuple(newest[site] for site in sorted(newest))

    def forget_tensors(self, study: str, tasks: Collection[str], spared: Collection[AnswerRow] = ()) -> None:
        """The answers to these tasks, but for those spared, name no blob any more; what they said stays."""
        keys = [(row.task, row.site) for row in spared]
        self._connection.execute(
            update(answers)
            .where(answers.c.study == study, answers.c.task.in_(tasks), answers.c.status.in_(FINAL))
            .where(tuple_(answers.c.task, answers.c.site).not_in(keys))
            .values(tensors_digest="")
        )


class ResultRecords:
    """What the centre made of each closed step."""

    def __init__(self, connection: Connection, blobs: BlobStore) -> None:
        self._connection = connection
        self._blobs = blobs

    def put(self, result: ResultRow) -> None:
        """Once per step; repeating the same changes nothing, another result is a ConflictError."""
        stored = self.get(result.study, result.task)
        if stored is not None:
            if replace(stored, closed_at=result.closed_at) != result:
                raise ConflictError(
                    f"the step {result.task} of {result.study} has another result already",
                    hint="Look for a second aggregator on the same database.",
                )
            return
        _need_blob(self._blobs, result.prior_digest)
        self._connection.execute(insert(results).values(asdict(result)))

    def get(self, study: str, task: str) -> ResultRow | None:
        row = self._connection.execute(
            select(results).where(results.c.study == study, results.c.task == task)
        ).first()
        return None if row is None else _result(row)

    def list(self, study: str) -> tuple[ResultRow, ...]:
        """In the order in which the steps were closed."""
        found = self._connection.execute(
            select(results).where(results.c.study == study).order_by(results.c.seq)
        )
        return tuple(map(_result, found))

    def forget_priors(self, study: str, tasks: Collection[str]) -> None:
        """The results of these tasks name no prior any more; what else was kept of them stays."""
        self._connection.execute(
            update(results).where(results.c.study == study, results.c.task.in_(tasks)).values(prior_digest="")
        )


class RefusalRecords:
    """Rejected answers and failures, for the operator's eyes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, refusal: RefusalRow) -> None:
        row = replace(refusal, code=storable(refusal.code), reason=storable(refusal.reason))
        self._connection.execute(insert(refusals).values(asdict(row)))

    def newest(self, study: str, count: int) -> tuple[RefusalRow, ...]:
        """The newest first."""
        found = self._connection.execute(
            select(refusals).where(refusals.c.study == study).order_by(refusals.c.seq.desc()).limit(count)
        )
        return tuple(RefusalRow(**_without_seq(row)) for row in found)


def _answers_to(study: str, task: str) -> Select[Any]:
    return select(answers).where(answers.c.study == study, answers.c.task == task).order_by(answers.c.seq)


def _standing(rows: Iterable[AnswerRow]) -> dict[str, AnswerRow]:
    """Per site, from answers in the order in which they came."""
    standing: dict[str, AnswerRow] = {}
    for row in rows:
        earlier = standing.get(row.site)
        if earlier is None or earlier.status not in FINAL:
            standing[row.site] = row
    return standing


def _need_blob(blobs: BlobStore, digest: str) -> None:
    if digest and not blobs.has(digest):
        raise StorageError(
            f"the blob {digest[:12]}… is not on the disk, so no row may name it",
            hint="Check that the state folder is whole and its disk is mounted.",
        )


def _answer(row: Row[Any]) -> AnswerRow:
    return AnswerRow(**_without_seq(row))


def _result(row: Row[Any]) -> ResultRow:
    return ResultRow(**_without_seq(row))


def _without_seq(row: Row[Any]) -> dict[str, Any]:
    return {name: value for name, value in row._mapping.items() if name != "seq"}
