"""The agent's state folder: which studies are approved, the site's own models, and which agent this is.

    lock  studies.lock  instance.json  audit.jsonl  identity/  outbox/  deletions/
    studies/NAME/{terms.json, approval.json, data.json, over.json, models/round-0001.safetensors …, priors/}

Every file is whole or absent. The identity is `identity.files`, the outbox and the audit log are modules of
their own. Nothing here knows the network; torch is imported with the first model.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from fedmap.errors import IntegrityError, NotFoundError, StateError
from fedmap.files.durable import (
    FolderLock,
    make_folder,
    read_file,
    remove_leftovers,
    storage_errors,
    sync_folder,
    waiting_lock,
    write_durably,
)
from fedmap.names import check_study_name
from fedmap.process.settings import Section
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap_site.identity.files import LOCK

if TYPE_CHECKING:
    from fedmap.algorithm.fit.round import OwnModel
    from fedmap.algorithm.model.network import Network

BEGUN = ".begun.json"
"""How the list of a deletion that is not finished ends, in `deletions/`."""
MODELS_KEPT = 3
"""A fit of round r starts from the newest model before r; one more is for a round that is asked again."""
_Record = TypeVar("_Record", bound=Section)
_RESTORE = "Restore the state folder from a backup, or leave the study and approve it again."


class Approval(Section):
    """Who agreed to which terms, and under which policy."""

    terms_digest: str
    approver: str
    at_unix_ms: int
    policy_digest: str
    left: bool = False


class DataRecord(Section):
    """Which file the study was begun with."""

    digest: str
    name: str


class _Over(Section):
    """When the agent first saw that a study had ended, or that the site had left it."""

    seen_unix_ms: int


class Instance(Section):
    """Tells a restarted agent from a second one."""

    id: str
    start: int  # counts the starts


class SiteState:
    """The folder of one agent. Only who holds `lock` may write models or count a start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outbox_folder = folder / "outbox"
        self.deletions_folder = folder / "deletions"
        self.audit_path = folder / "audit.jsonl"
        self.lock = FolderLock(folder / LOCK)

    def studies_lock(self) -> AbstractContextManager[None]:
        """Held while consent, or what is kept under it, comes or goes: nothing is kept after a purge."""
        return waiting_lock(self.folder / "studies.lock")

    def prepare(self) -> None:
        """Make what is missing."""
        for folder in (self.folder, self.folder / "studies", self.outbox_folder):
            make_folder(folder)

    def begin(self) -> Instance:
        """One more start, for the holder of the lock; clears what a killed agent left half written."""
        for folder in (
            self.folder,
            *(path for path in (self.folder / "studies").rglob("*") if path.is_dir()),
        ):
            remove_leftovers(folder)
        path = self.folder / "instance.json"
        last = _read(path, Instance) if path.exists() else Instance(id=secrets.token_hex(16), start=0)
        _write(path, instance := Instance(id=last.id, start=last.start + 1))
        return instance

    def approve(self, terms: StudyTerms, approver: str, at_unix_ms: int, policy_digest: str) -> None:
        """Record the site's consent to exactly these terms."""
        with self.studies_lock():
            before = self.approval(terms.study)
            if before is not None and before.terms_digest != terms.digest and not before.left:
                raise StateError(
                    f"the study {terms.study} is already approved under other terms",
                    hint=f"Run `fedmap-site leave {terms.study}` first if the new terms are the right ones.",
                )
            if self.begun_deletion(terms.study).exists():
                raise StateError(
                    f"a deletion of the study {terms.study} was begun and is not finished",
                    hint=f"Finish it with `fedmap-site purge {terms.study} --approver NAME`, "
                    "then approve again.",
                )
            folder = self.study_folder(terms.study)
            make_folder(folder / "models")
            over = folder / "over.json"
            with storage_errors(over):
                over.unlink(missing_ok=True)  # the time after which it is deleted begins anew
            write_durably(folder / "terms.json", terms.to_json().encode())
            _write(
                folder / "approval.json",
                Approval(
                    terms_digest=terms.digest,
                    approver=approver,
                    at_unix_ms=at_unix_ms,
                    policy_digest=policy_digest,
                ),
            )

    def approval(self, study: str) -> Approval | None:
        path = self.study_folder(study) / "approval.json"
        return _read(path, Approval) if path.exists() else None

    def terms(self, study: str) -> StudyTerms:
        """The approved terms; `NotFoundError` where the site takes no part."""
        approval = self.approval(study)
        if approval is None or approval.left:
            raise NotFoundError(
                f"this site takes no part in the study {study}",
                hint="`fedmap-site studies` lists what is offered; `fedmap-site approve` joins one.",
            )
        text = read_file(self.study_folder(study) / "terms.json").decode("utf-8", "replace")
        terms = parse_terms(text, f"studies/{study}/terms.json")
        if terms.digest != approval.terms_digest or terms.study != study:
            raise IntegrityError(f"the stored terms of {study} are not the approved ones", hint=_RESTORE)
        return terms

    def leave(self, study: str) -> None:
        """Take no further part. What was sent cannot be called back; the own models stay until deleted."""
        with self.studies_lock():
            approval = self.approval(study)
            if approval is not None and not approval.left:
                _write(self.study_folder(study) / "approval.json", approval.model_copy(update={"left": True}))

    def studies(self) -> tuple[str, ...]:
        """Studies that the site takes part in, sorted."""
        return tuple(name for name in self.known() if not self.has_left(name))

    def known(self) -> tuple[str, ...]:
        """Studies that the site has ever agreed to and not purged, sorted."""
        found = (self.folder / "studies").glob("*/approval.json")
        return tuple(sorted(path.parent.name for path in found))

    def has_left(self, study: str) -> bool:
        approval = self.approval(study)
        return approval is None or approval.left

    def seen_over(self, study: str, now: int) -> int:
        """When it was first seen that the study is over for this site (unix ms): now, if not before."""
        path = self.study_folder(study) / "over.json"
        if not path.exists():
            _write(path, _Over(seen_unix_ms=now))
        return _read(path, _Over).seen_unix_ms

    def data_record(self, study: str) -> DataRecord | None:
        path = self.study_folder(study) / "data.json"
        return _read(path, DataRecord) if path.exists() else None

    def remember_data(self, study: str, record: DataRecord) -> None:
        make_folder(self.study_folder(study))
        _write(self.study_folder(study) / "data.json", record)

    def save_model(self, study: str, number: int, network: Network, model: OwnModel) -> None:
        """The site's own model after a round. The same round trained again gives the same file."""
        from fedmap.study.tensors.parameter_files import encode_own_model

        folder = self.study_folder(study) / "models"
        make_folder(folder)
        write_durably(folder / f"round-{number:04d}.safetensors", encode_own_model(network, model))
        for _, path in self._models(study)[:-MODELS_KEPT]:
            with storage_errors(path):
                path.unlink(missing_ok=True)

    def newest_model(
        self,
        study: str,
        network: Network,
        before: int | None = None,
        passed_over: Callable[[int], bool] = lambda _: False,
    ) -> OwnModel | None:
        """The newest own model, of a round below `before` where that is given; None: there is none yet.

        `passed_over` says of which rounds none is taken.
        """
        models = [
            path
            for number, path in self._models(study)
            if (before is None or number < before) and not passed_over(number)
        ]
        if not models:
            return None
        from fedmap.study.tensors.parameter_files import decode_own_model

        return decode_own_model(network, models[-1], f"the own model {models[-1].name}")

    def priors_folder(self, study: str) -> Path:
        folder = self.study_folder(study) / "priors"
        make_folder(folder)
        return folder

    def prior_path(self, study: str, digest: str) -> Path:
        """Where a prior of that digest is kept; the caller has checked the digest's form."""
        return self.priors_folder(study) / f"{digest}.safetensors"

    def keep_only_prior(self, study: str, digest: str) -> None:
        """Delete the priors of earlier rounds."""
        kept = self.prior_path(study, digest)
        with storage_errors(kept.parent):
            for path in kept.parent.glob("*.safetensors"):
                if path != kept:
                    path.unlink(missing_ok=True)

    def delete_models(self, study: str) -> int:
        """Delete the own models and priors of a study; how many files that were."""
        count = 0
        for folder in (self.study_folder(study) / "models", self.study_folder(study) / "priors"):
            if folder.is_dir():
                count += sum(1 for path in folder.iterdir())
                with storage_errors(folder):
                    shutil.rmtree(folder)
        return count

    def delete_study(self, study: str) -> None:
        """Delete all that is kept of a study; for one that the site has left."""
        folder = self.study_folder(study)
        with storage_errors(folder):
            if folder.is_dir():
                shutil.rmtree(folder)
                sync_folder(folder.parent)

    def study_folder(self, study: str) -> Path:
        """A name from outside becomes a path only here, and only if it is a plain name."""
        return self.folder / "studies" / check_study_name(study)

    def begun_deletion(self, study: str) -> Path:
        """The list of what a purge deletes; it is there from the purge's beginning to its end."""
        return self.deletions_folder / f"{check_study_name(study)}{BEGUN}"

    def _models(self, study: str) -> list[tuple[int, Path]]:
        """(round, file), oldest first."""
        paths = (self.study_folder(study) / "models").glob("round-*.safetensors")
        numbered = [(path.name.removeprefix("round-").removesuffix(".safetensors"), path) for path in paths]
        return sorted((int(number), path) for number, path in numbered if number.isdecimal())


def _write(path: Path, record: Section) -> None:
    write_durably(path, record.model_dump_json(indent=1).encode() + b"\n")


def _read(path: Path, kind: type[_Record]) -> _Record:
    try:
        return kind.model_validate_json(read_file(path), strict=True)
    except ValidationError:
        raise IntegrityError(f"{path}: the file is damaged", hint=_RESTORE) from None
