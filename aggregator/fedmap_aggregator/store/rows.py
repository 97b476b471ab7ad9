"""What goes into the store and comes out of it: frozen rows, named as their tables are.

They hold no behaviour and no SQL. All times are Unix milliseconds; digests are SHA-256 in hex.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SiteState = Literal["invited", "active", "revoked"]
AnswerStatus = Literal["accepted", "abstained", "failed", "rejected"]

FINAL: frozenset[AnswerStatus] = frozenset({"accepted", "abstained"})
"""An answer with one of these stands; a failed or rejected one may be followed by a better one."""


@dataclass(frozen=True)
class SiteRow:
    """A site as the operator invited it."""

    name: str
    tier: int  # 1, 2 or 3
    region: str
    state: SiteState
    software_version: str = ""  # as its agent last said


@dataclass(frozen=True)
class InvitationRow:
    """A one-time token, known by its hash only."""

    token_hash: str
    site: str
    tier: int
    region: str
    expires_at: int
    used_at: int | None = None
    withdrawn_at: int | None = None


@dataclass(frozen=True)
class CertificateRow:
    """A certificate that the federation's own authority gave out."""

    serial: str  # hex
    role: str
    name: str
    not_before: int
    not_after: int
    revoked_at: int | None = None


@dataclass(frozen=True)
class StudyRow:
    """A study: terms that never change, and the coordinator's state under a version that counts its saves."""

    name: str
    terms_json: str
    terms_digest: str
    state_json: str
    version: int


@dataclass(frozen=True)
class AnswerRow:
    """One answer of a site as it came, with the gate's verdict."""

    study: str
    task: str
    site: str
    attempt: int
    digest: str  # of the Answer message
    status: AnswerStatus
    answer: bytes  # fedmap.v1.Answer, deterministic serialisation
    tensors_digest: str  # empty: none
    norm: float | None
    reason: str  # of a failure or rejection; empty otherwise
    received_at: int


@dataclass(frozen=True)
class ResultRow:
    """What the centre made of one closed step."""

    study: str
    task: str
    prior_digest: str  # empty: the step makes none
    content_json: str
    closed_at: int


@dataclass(frozen=True)
class RefusalRow:
    """A rejected answer or a failure, as the operator's status lists it."""

    study: str
    task: str
    site: str
    code: str
    reason: str
    at: int


@dataclass(frozen=True)
class BundleRow:
    """One release: the bundle and its manifest are blobs, on the disk before this row."""

    name: str
    version: int  # counts per name from 1
    study: str
    round: int
    tier: int  # 2 or 3
    file_digest: str
    size: int  # bytes of the file
    manifest_digest: str
    key_fingerprint: str  # of the release key that signed it
    released_at: int
    expires_at: int
    withdrawn_at: int | None = None
    reason: str = ""  # of the withdrawal

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.fedmap"


@dataclass(frozen=True)
class LinkRow:
    """A one-time download link, known by the hash of its token only."""

    token_hash: str
    name: str
    version: int
    made_at: int
    expires_at: int
    spent_at: int | None = None


@dataclass(frozen=True)
class DeletionRow:
    """The deletion of one study's content. It is begun with the rows, and finished after the last file."""

    study: str
    begun_at: int
    actor: str
    listing_json: str  # all that goes, by digest
    certificate: str = ""  # the signed file; empty until all of it is gone
    finished_at: int | None = None


@dataclass(frozen=True)
class AuditHead:
    """What a check of the audit log found: write the hash down elsewhere to notice a cut-off log."""

    entries: int
    hash: str
