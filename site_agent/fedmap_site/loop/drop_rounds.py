"""Rounds that travel as files, for a site without a network: offers and tasks come in, signed answers go out.

Every file must be signed by this federation's aggregator and be for this site. From there on it is the same
door, the same work and the same exit gate as on the network; in review mode the answer is written only after
a named person has released it, by running the same command again.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedmap.contract import wire
from fedmap.contract.v1.values import Drop, DropAnswer, DropApproval, Task
from fedmap.errors import FedmapError, IntegrityError, RejectedError, StateError
from fedmap.files.digests import file_sha256, is_digest
from fedmap.files.durable import storage_errors
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap.trust import drop_files
from fedmap.trust.certificates import Identity
from fedmap.trust.drop_files import DropFile
from fedmap_site.exit.item import OutboxItem
from fedmap_site.identity.files import SiteIdentity
from fedmap_site.loop.workplace import Workplace
from fedmap_site.state.audit_log import AuditLog
from fedmap_site.state.studies import SiteState

_WANTED = {
    "offer": "It is an offer: approve it with `fedmap-site approve --file FILE --approver NAME --out REPLY`.",
    "task": "It is a task: do it with `fedmap-site round run FILE --out REPLY`.",
    "certificate": "It is a certificate: use `fedmap-site enrol --offline-certificate FILE`.",
}


@dataclass(frozen=True)
class FileSite:
    """A site that speaks through files."""

    name: str
    identity: SiteIdentity
    state: SiteState
    audit: AuditLog

    @contextmanager
    def opened(self, path: Path, wanted: str, now: datetime.datetime) -> Iterator[DropFile]:
        """A file that is signed by the aggregator, for this site, and of the wanted kind."""
        found = drop_files.read(path, folder=self.state.folder)
        try:
            found.verify(self.identity.authority, now, Identity("aggregator"))
            if found.drop.site != self.name:
                raise IntegrityError(
                    f"{path}: it is for site {found.drop.site}, this is site {self.name}",
                    hint="Ask the operator for the file that is for this site.",
                )
            if found.kind != wanted:
                raise StateError(
                    f"{path}: it holds another thing than {wanted}",
                    hint=_WANTED.get(found.kind, "Ask the operator which file is meant."),
                )
            yield found
        finally:
            found.discard()

    def write(self, out: Path, drop: Drop, tensors: Path | None, now: datetime.datetime) -> None:
        drop = replace(drop, site=self.name, made_unix_ms=int(now.timestamp() * 1000))
        drop_files.write(out, drop, tensors, self.identity.key, self.identity.certificate)


def offered_terms(site: FileSite, path: Path, now: datetime.datetime) -> StudyTerms:
    """The terms in an offer; their digest is computed here, not believed."""
    with site.opened(path, "offer", now) as found:
        assert found.drop.offer is not None  # it was opened as one
        return parse_terms(found.drop.offer.terms_json, str(path))


def write_approval(site: FileSite, terms: StudyTerms, out: Path, now: datetime.datetime) -> None:
    """The site's consent, as a file for the centre."""
    site.write(out, Drop(approval=DropApproval(terms.study, terms.digest)), None, now)


def run_round(
    site: FileSite, workplace: Workplace, path: Path, out: Path, now: datetime.datetime
) -> tuple[OutboxItem, FedmapError | None]:
    """Do the task of a file, once, and write its answer if it may leave already.

    The error is why a task failed: it stays here, and what leaves is a failure answer.
    """
    failure: FedmapError | None = None
    with site.opened(path, "task", now) as found:
        task = _task(found, path)
        terms = workplace.approved_terms(task)
        item = workplace.answered(task)
        if item is None:
            _keep_prior(site, task, found, path)
            item, failure = workplace.do(task, terms)
    if item.status.state in ("released", "sent"):
        drop = Drop(answer=DropAnswer(item.answer_bytes()))
        site.write(out, drop, item.tensors_path, now)
        detail = {"answer": item.answer_digest, "file": file_sha256(out)}
        site.audit.append("answer.written_to_file", item.id, detail)
    return item, failure


def _task(found: DropFile, path: Path) -> Task:
    content = found.drop.task
    assert content is not None  # it was opened as one
    try:
        task = wire.read(Task, content.task)
    except RejectedError as error:
        raise IntegrityError(
            f"{path}: the task in it cannot be read", hint="Both sides must run compatible versions."
        ) from error
    if parse_terms(content.terms_json, str(path)).digest != task.terms_digest:
        raise IntegrityError(
            f"{path}: the terms in it are not those of its task", hint="Ask the operator for the file again."
        )
    if found.drop.tensors_digest != task.prior_digest:
        raise IntegrityError(
            f"{path}: the prior in it is not the one that its task names",
            hint="Ask the operator for the file again.",
        )
    return task


def _keep_prior(site: FileSite, task: Task, found: DropFile, path: Path) -> None:
    if found.tensors_path is None:
        return
    if not is_digest(task.prior_digest):
        raise IntegrityError(f"{path}: its prior has no digest", hint="Ask the operator for the file again.")
    kept = site.state.prior_path(task.study, task.prior_digest)
    with storage_errors(kept):
        shutil.move(found.tensors_path, kept)
    site.state.keep_only_prior(task.study, task.prior_digest)
