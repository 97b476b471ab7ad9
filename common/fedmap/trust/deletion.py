"""A certificate of deletion: what was deleted, when and by whom, as one signed JSON file that anybody can
check.

The centre signs with its release key, whose fingerprint sites and clinics have on paper; a site signs with
the key of its certificate, which travels with the signature. Bytes in, bytes out: no files, no clock.
Digests and counts only: what was deleted cannot be told from it, but whoever kept a copy can be shown that
it is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from pydantic import Field

from fedmap.errors import NotAllowedError
from fedmap.process.settings import Section
from fedmap.trust.audit import AuditEntry
from fedmap.trust.certificates import Identity
from fedmap.trust.envelope import Envelope

SUFFIX = ".deletion.json"
CERTIFICATE = Envelope(
    b"fedmap-deletion-1\n",
    "deletion",
    "the certificate of deletion",
    most_bytes=64 << 20,
    hint="Get the certificate again from whoever issued it; do not rely on this one.",
)

Place = Literal["aggregator", "site"]
UnixMs = Annotated[int, Ge(0), Lt(253_402_300_800_000)]  # to the end of the year 9999, as dates go


class Deleted(Section):
    """One thing that is gone."""

    kind: str
    """answer, blob, quarantine, bundle, model, prior, outbox or record."""
    sha256: str
    bytes: Annotated[int, Ge(0)]
    name: str = ""
    """Of a bundle or an outbox item, as people know it."""


class DeletionRecord(Section):
    """What the certificate says."""

    format: Literal[1] = 1
    study: str
    terms_digest: str
    """Of the terms that the sites approved; empty: not known any more."""
    place: Place
    owner: str
    """The aggregator's address, or the site's name."""
    actor: str
    """Who asked for it; `retention` where the configured time was up."""
    begun_unix_ms: UnixMs
    finished_unix_ms: UnixMs = 0
    """0 in a draft: what a deletion that is planned or begun takes."""
    software_version: str
    rows: Mapping[str, int] = Field(default_factory=dict)
    """Database rows that went, by kind."""
    deleted: tuple[Deleted, ...]
    kept: tuple[str, ...]
    """What stays, in words."""
    audit_entries: int = 0
    audit_head: str = ""
    """Of the audit log after its entry about this deletion."""

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.deleted)

    @property
    def files(self) -> int:
        return sum(one.kind != "answer" for one in self.deleted)

    def finished(self, unix_ms: int, entry: AuditEntry) -> DeletionRecord:
        """The draft as what has been done, and where the audit log says so."""
        at = {"finished_unix_ms": unix_ms, "audit_entries": entry.seq, "audit_head": entry.hash}
        return self.model_copy(update=at)


@dataclass(frozen=True)
class Trust:
    """Whose signatures count: release keys by fingerprint, and the federation's authority (PEM)."""

    fingerprints: Collection[str] = ()
    authority: bytes = b""


def read_deletion(data: bytes, trust: Trust) -> tuple[DeletionRecord, str]:
    """What the certificate says and who signed it, if that is somebody trusted and every byte is theirs."""
    opened = CERTIFICATE.open(data)
    if not opened.by_certificate:
        signer = opened.verify_release_key(trust.fingerprints)
        record = opened.content(DeletionRecord)
        if record.place != "aggregator":
            raise CERTIFICATE.damaged("a site's deletion is not signed by a release key")
        return record, f"release key {signer}"
    if not trust.authority:
        raise NotAllowedError(
            "a site signed it, and the federation's authority is not known here",
            hint="Give --ca the federation's ca.pem; an enrolled site has it in state/identity.",
        )
    record = opened.content(DeletionRecord)
    # Its certificate must have been good when the deletion ended: later it ends or is renewed.
    found = opened.verify_certificate(trust.authority, _moment(record.finished_unix_ms))
    if record.place != "site" or found != Identity("site", record.owner):
        raise CERTIFICATE.damaged(f"it is signed by {found}, and says that it comes from {record.owner}")
    return record, str(found)


def deletion_lines(name: str, record: DeletionRecord, signer: str) -> list[str]:
    """What a certificate that was checked says, for people."""
    rows = "".join(f"{count:,} {kind}, " for kind, count in record.rows.items())
    finished = _moment(record.finished_unix_ms)
    return [
        f"{name} is genuine, signed by {signer}",
        f"  study     {record.study}, at {record.owner}",
        f"  deleted   {rows}{record.files:,} file(s), {record.bytes:,} bytes",
        f"  finished  {finished:%Y-%m-%d %H:%M} UTC, by {record.actor}",
        *(f"  kept      {one}" for one in record.kept),
        f"  audit     entry {record.audit_entries}, {record.audit_head}",
    ]


def _moment(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
