"""What a study leaves behind, deleted: after its end all of it, on the way the files of old rounds.

A purge takes these steps: (1) the study has ended; (2) one transaction lists what goes, deletes the rows,
strips the study to its record and notes the deletion as begun; (3) the files go that no row of anybody names
any more; (4) one transaction notes the end and keeps the signed certificate. After a kill the deletion goes
on from (3) at the next start, at the next hourly look, or at the next call. Released bundles, the study's
terms and the audit log stay. A deleted file is not erased from a disk or from backups: docs/operator.md says
what follows from that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from fedmap.errors import FedmapError, StateError
from fedmap.files.digests import sha256_hex
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.course.questions import participants
from fedmap.trust.deletion import CERTIFICATE, Deleted, DeletionRecord
from fedmap_aggregator.identity.release_key import ReleaseKey
from fedmap_aggregator.store import AnswerRow, BundleRow, DeletionRow, Store, Transaction
from fedmap_aggregator.studies.records import newest_updates
from fedmap_aggregator.studies.service import Study, StudyService

_DAY_SECONDS = 86_400
_AT_ONCE = 100  # files while everybody else's writes wait
KEPT_BUNDLE = "the bundle "
_KEPT = (
    "the audit log: names, counts and digests",
    "the study's name, terms and members, and how far it came",
    "the manifests of its bundles, and the list of withdrawals",
)


@dataclass(frozen=True)
class StudyPurge:
    """Deletes content of studies, one study at a time. Safe to call from any thread."""

    service: StudyService
    store: Store
    key: ReleaseKey
    owner: str  # this aggregator's name
    upkeep: Callable[[], AbstractContextManager[object]]  # the lock that keeps backups and deletions apart
    clock_ms: Callable[[], int]
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, name: str, with_bundles: bool) -> DeletionRecord:
        """What a purge would take now, or took when it was begun. StateError before the study's end."""
        row = self.deletion(name)
        if row is not None:
            return _draft(row)
        study = self._ended(name)
        with self.store.reading() as transaction:
            return self._plan(transaction, study, with_bundles, "")

    def purge(self, name: str, with_bundles: bool, actor: str) -> DeletionRecord:
        """Delete a study's content; what the certificate says. Done before: as it was then."""
        with self._turn, self.upkeep():
            study = self._ended(name)  # (1)
            if self.deletion(name) is None:
                self._begin(study, with_bundles, actor)  # (2)
                reach("aggregator.purge_begun")
            elif with_bundles:
                self._check_no_bundle_is_left(name)
            return self._finish(name)

    def finish_interrupted(self) -> None:
        """Take up every deletion that a stop interrupted; one that must wait (a backup) is left for later."""
        with self.store.reading() as transaction:
            names = transaction.deletions.unfinished()
        for name in names:
            try:
                with self._turn, self.upkeep():
                    self._finish(name)
            except FedmapError as error:
                get_logger().error("purge_not_finished", study=name, exc_info=error)

    def deletion(self, name: str) -> DeletionRow | None:
        with self.store.reading() as transaction:
            return transaction.deletions.get(name)

    def prune(self, name: str, keep_rounds: int) -> int:
        """Delete updates and priors of all but the newest rounds; how many files that were."""
        with self._turn, self.upkeep():
            study = self.service.study(name)
            oldest = study.state.rounds_done - keep_rounds
            tasks = ["initialise"] * (oldest >= 0) + [f"round-{number}" for number in range(1, oldest + 1)]
            if not tasks or study.state.purged_at is not None:
                return 0
            with self.store.transaction() as transaction:
                before = transaction.blob_names.of_study(name)
                transaction.answers.forget_tensors(name, tasks, _may_count_again(transaction, study))
                transaction.results.forget_priors(name, tasks)
                freed = before - transaction.blob_names.of_study(name)
                if not freed:
                    return 0
                detail = {"files": str(len(freed)), "up_to_round": str(oldest)}
                transaction.audit.append("retention", "study.prune", name, detail, self.clock_ms())
            reach("aggregator.pruned_rows")
            self._delete_unnamed(freed)
            get_logger().info("study_pruned", study=name, count=len(freed), round=oldest)
            return len(freed)

    def _ended(self, name: str) -> Study:
        study = self.service.study(name)
        if not study.state.over:
            raise StateError(
                f"the study {name} has not ended: it is in the phase {study.state.phase}",
                hint=f"wait for its end, or end it for good with `fedmap-aggregator study abort {name}`",
            )
        return study

    def _check_no_bundle_is_left(self, name: str) -> None:
        """A deletion is done once: what it left cannot be asked for afterwards."""
        with self.store.reading() as transaction:
            left = [
                row.file_name for row in transaction.bundles.list() if row.study == name and row.file_digest
            ]
        if left:
            raise StateError(
                f"the content of {name} was deleted before, without its bundles: {', '.join(left)} stays",
                hint="leave out --with-bundles to get the certificate again; withdraw bundles that nobody "
                "may use any more, and ask for --with-bundles at the first purge of a study",
            )

    def _plan(self, transaction: Transaction, study: Study, with_bundles: bool, actor: str) -> DeletionRecord:
        name, blobs = study.state.study, self.store.blobs
        bundles = [row for row in transaction.bundles.list() if row.study == name]
        going = _withdrawn(bundles) if with_bundles else []
        names = transaction.blob_names
        mine = names.of_study(name) - names.of_others(name)
        yesterday = self.clock_ms() / 1000 - _DAY_SECONDS
        leftovers = blobs.unnamed(names.all(), yesterday)
        digests = transaction.deletions.answer_digests(name)
        found = [Deleted(kind="answer", sha256=digest, bytes=0) for digest in digests]
        found += [self._file("blob", digest, blobs.path(digest)) for digest in sorted(mine)]
        found += [
            self._file("quarantine", digest, blobs.quarantined(digest))
            for digest in sorted(names.refused(name) - names.refused_of_others(name))
            if blobs.size(blobs.quarantined(digest)) is not None
        ]
        found += [
            self._file("bundle", row.file_digest, blobs.path(row.file_digest), row.file_name) for row in going
        ]
        found += [Deleted(kind="leftover", sha256=one, bytes=leftovers[one]) for one in sorted(leftovers)]
        kept = [row.file_name for row in bundles if row not in going and row.file_digest]
        return DeletionRecord(
            study=name,
            terms_digest=study.terms.digest,
            place="aggregator",
            owner=self.owner,
            actor=actor,
            begun_unix_ms=self.clock_ms(),
            software_version=version("fedmap"),
            rows=dict(transaction.deletions.content(name)),
            deleted=tuple(found),
            kept=(*_KEPT, *(f"{KEPT_BUNDLE}{bundle}" for bundle in kept)),
        )

    def _file(self, kind: str, digest: str, path: Path, name: str = "") -> Deleted:
        return Deleted(kind=kind, sha256=digest, bytes=self.store.blobs.size(path) or 0, name=name)

    def _begin(self, study: Study, with_bundles: bool, actor: str) -> None:
        name, now = study.state.study, self.clock_ms()

        def also(transaction: Transaction) -> None:
            draft = self._plan(transaction, study, with_bundles, actor)
            transaction.deletions.begin(DeletionRow(name, now, actor, draft.model_dump_json()))
            going = {one.name for one in draft.deleted if one.kind == "bundle"}
            for row in transaction.bundles.list():
                if row.file_name in going:
                    transaction.bundles.forget_file(row.name, row.version)
            detail = {kind: str(count) for kind, count in draft.rows.items()} | {"files": str(draft.files)}
            transaction.audit.append(actor, "study.purge", name, detail, now)

        self.service.forget_content(name, now, also)

    def _finish(self, name: str) -> DeletionRecord:
        row = self.deletion(name)
        if row is None:
            raise StateError(f"nothing of {name} was deleted", hint="run `fedmap-aggregator purge` first")
        draft = _draft(row)
        if row.finished_at is not None:
            return draft
        self._delete_unnamed({one.sha256 for one in draft.deleted if one.kind != "answer"})  # (3)
        reach("aggregator.purge_files_gone")
        now = self.clock_ms()
        with self.store.transaction() as transaction:  # (4)
            detail = {"files": str(draft.files), "bytes": str(draft.bytes)}
            entry = transaction.audit.append(row.actor, "study.purged", name, detail, now)
            record = draft.finished(now, entry)
            certificate = CERTIFICATE.sign_by_release_key(record, self.key.pem)
            transaction.deletions.finish(name, certificate.decode(), now)
        get_logger().info("study_purged", study=name, actor=row.actor, digest=sha256_hex(certificate))
        return record

    def _delete_unnamed(self, digests: Collection[str]) -> None:
        """In turns with all who write rows: a file that a new row names just now stays."""
        blobs, ordered = self.store.blobs, sorted(digests)
        for start in range(0, len(ordered), _AT_ONCE):
            with self.store.transaction() as transaction:
                named, refused = transaction.blob_names.all(), transaction.blob_names.refused_of_others("")
                some = ordered[start : start + _AT_ONCE]
                blobs.delete(blobs.path(digest) for digest in some if digest not in named)
                blobs.delete(blobs.quarantined(digest) for digest in some if digest not in refused)
            reach("aggregator.purging_files")


def _draft(row: DeletionRow) -> DeletionRecord:
    draft = DeletionRecord.model_validate_json(row.listing_json, strict=False)
    return draft.model_copy(update={"finished_unix_ms": row.finished_at or 0})


def _withdrawn(bundles: Collection[BundleRow]) -> list[BundleRow]:
    """All of them; StateError where one is still good."""
    standing = [row.file_name for row in bundles if row.withdrawn_at is None]
    if standing:
        raise StateError(
            f"{', '.join(standing)} is released and not withdrawn, so its file stays",
            hint="withdraw every bundle of the study first, or leave out --with-bundles",
        )
    return [row for row in bundles if row.file_digest]


def _may_count_again(transaction: Transaction, study: Study) -> tuple[AnswerRow, ...]:
    """What each site sent last, while consensus rounds to come count it where the site is missing."""
    following = study.state.rounds_done + 1
    if study.state.over or not study.terms.plan.settings.is_consensus(following, study.terms.rounds):
        return ()
    return newest_updates(transaction, study.state.study, following, participants(study.state))
