"""What a site keeps of a study, deleted: its models, the priors, the outbox items, the records of consent.

(1) the site takes no part in the study any more; (2) a list of all that goes is on the disk, and the audit
log says that it begins; (3) the files go; (4) the audit log says that they are gone, and a certificate,
signed with the site's own key, takes the place of the list. After a kill it goes on from (3). The audit
log stays, and so do bundles: released models belong to no site. A deleted file is not erased from a disk
or from backups.

The running agent deletes by itself only where the configuration asks for it (`SiteRetention`). A study
counts as over from the moment at which the agent first sees that it has ended, or that the site has left
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from fedmap.errors import IntegrityError, NotFoundError, StateError
from fedmap.files.digests import file_sha256
from fedmap.files.durable import make_folder, read_file, storage_errors, write_durably
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.trust.deletion import CERTIFICATE, SUFFIX, Deleted, DeletionRecord
from fedmap.trust.envelope import CertificateSigner
from fedmap_site.exit.outbox import Outbox
from fedmap_site.identity.files import SiteIdentity
from fedmap_site.state.audit_log import AuditLog, Clock
from fedmap_site.state.studies import BEGUN, SiteState

_KINDS = {"models": "model", "priors": "prior"}
_KEPT = (
    "the audit log: names, counts and digests",
    "bundles of released models, which `fedmap-site bundle remove` deletes",
    "the site's own data files, which were only read",
)


class SitePurge:
    """Deletes one study at a time. For the agent and for the command line."""

    def __init__(
        self,
        site: str,
        version: str,
        state: SiteState,
        outbox: Outbox,
        audit: AuditLog,
        identity: Callable[[], SiteIdentity],
        clock: Clock,
    ) -> None:
        self._site = site
        self._version = version
        self._state = state
        self._outbox = outbox
        self._audit = audit
        self._identity = identity
        self._clock = clock

    def plan(self, study: str) -> tuple[Deleted, ...]:
        """Every file that would go. NotFoundError where nothing of the study is kept."""
        found = tuple(self._files(study))
        if not found and not self._state.begun_deletion(study).exists():
            raise NotFoundError(
                f"nothing of the study {study} is kept here",
                hint=f"certificates of earlier deletions are in {self._state.deletions_folder}",
            )
        return found

    def purge(self, study: str, actor: str) -> tuple[Path, DeletionRecord]:
        """Delete what is kept of a study that the site takes no part in; the certificate and what it says."""
        signer = self._signer()  # before anything goes: without a key there is no certificate
        with self._state.studies_lock():  # whoever is in a task of it keeps nothing from here on
            return self._purge(study, actor, signer)

    def _purge(self, study: str, actor: str, signer: CertificateSigner) -> tuple[Path, DeletionRecord]:
        begun = self._state.begun_deletion(study)
        self._check_out(study)  # (1)
        if not begun.exists():
            self._begin(study, actor, begun)  # (2)
        reach("agent.purge_begun")
        draft = self._draft(begun)
        self._outbox.remove_study(study)  # (3)
        reach("agent.purging")
        self._state.delete_study(study)
        reach("agent.purge_files_gone")
        detail = {"files": str(len(draft.deleted)), "bytes": str(draft.bytes)}
        entry = self._audit.append("study.purged", study, detail, draft.actor)  # (4)
        record = draft.finished(self._clock(), entry)
        path = self._state.deletions_folder / f"{study}-{draft.begun_unix_ms}{SUFFIX}"
        write_durably(path, CERTIFICATE.sign_by_certificate(record, signer), mode=0o644)
        with storage_errors(begun):
            begun.unlink(missing_ok=True)
        return path, record

    def interrupted(self) -> tuple[str, ...]:
        """Studies whose deletion was begun and not finished, sorted."""
        found = self._state.deletions_folder.glob(f"*{BEGUN}")
        return tuple(sorted(path.name.removesuffix(BEGUN) for path in found))

    def _check_out(self, study: str) -> None:
        approval = self._state.approval(study)
        if approval is not None and not approval.left:
            raise StateError(
                f"this site still takes part in the study {study}",
                hint=f"Run `fedmap-site leave {study}` first, or wait until the study has ended.",
            )

    def _begin(self, study: str, actor: str, begun: Path) -> None:
        deleted, approval = self.plan(study), self._state.approval(study)
        draft = DeletionRecord(
            study=study,
            terms_digest=approval.terms_digest if approval is not None else "",
            place="site",
            owner=self._site,
            actor=actor,
            begun_unix_ms=self._clock(),
            software_version=self._version,
            deleted=deleted,
            kept=_KEPT,
        )
        make_folder(begun.parent)
        write_durably(begun, draft.model_dump_json(indent=1).encode())
        self._audit.append("study.purge", study, {"files": str(len(deleted))}, actor)

    def _draft(self, begun: Path) -> DeletionRecord:
        try:
            return DeletionRecord.model_validate_json(read_file(begun), strict=False)
        except ValidationError:
            raise IntegrityError(
                f"{begun}: the file is damaged",
                hint="Delete it, and purge again: the certificate then lists what is still there.",
            ) from None

    def _files(self, study: str) -> Iterator[Deleted]:
        folder = self._state.study_folder(study)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield _deleted(_KINDS.get(path.parent.name, "record"), path, path.name)
        for item in self._outbox.folders_of(study):
            for path in sorted(item.iterdir()):
                yield _deleted("outbox", path, f"{item.name}/{path.name}")

    def _signer(self) -> CertificateSigner:
        identity = self._identity()
        return CertificateSigner(identity.certificate, identity.key)


def _deleted(kind: str, path: Path, name: str) -> Deleted:
    with storage_errors(path):
        return Deleted(kind=kind, sha256=file_sha256(path), bytes=path.stat().st_size, name=name)


ENDED = frozenset({"complete", "aborted"})
"""Phases of a study in which nobody asks for anything any more."""
ACTOR = "retention"
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

Phases = Callable[[], Mapping[str, str]]
"""The phase of each study that the aggregator offers to this site."""


class SiteRetention:
    """Call it in every turn; it works once an hour, and first finishes what a stop interrupted."""

    def __init__(
        self, days_after_end: int, state: SiteState, purge: SitePurge, phases: Phases, clock: Clock
    ) -> None:
        self._days = days_after_end
        self._state = state
        self._purge = purge
        self._phases = phases
        self._clock = clock
        self._next = 0

    def __call__(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _HOUR_MS
        for study in self._purge.interrupted():
            if self._state.has_left(study):
                self._delete(study)
        if not self._days:
            return
        phases = self._phases()
        for study in self._state.known():
            if not self._state.has_left(study) and phases.get(study) not in ENDED:
                continue
            if self._state.seen_over(study, now) + self._days * _DAY_MS <= now:
                self._state.leave(study)
                self._delete(study)

    def _delete(self, study: str) -> None:
        self._purge.purge(study, ACTOR)
        get_logger().info("study_purged", study=study)
