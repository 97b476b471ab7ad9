"""A certificate of deletion: what was deleted, when and by whom, as one signed JSON file that anybody can
check.

The centre signs with its release key, whose fingerprint sites and clinics have on paper; a site signs with
the key of its certificate, which travels with the signature. Bytes in, bytes out: no files, no clock.
Digests and counts only: what was deleted cannot be told from it, but whoever kept a copy can be shown that
it is the same.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from pydantic import ValidationError

from fedmap.errors import IncompatibleError, IntegrityError, LimitError, NotAllowedError
from fedmap.process.settings import Section
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import sign, verify_chain
from fedmap.trust.pki import verify_signature as verify_with_certificate
from fedmap.trust.signing import Signature, parse_signature, signature_of, verify_signature

FORMAT = 1
KIND = b"fedmap-deletion-1\n"
MOST_BYTES = 64 << 20
SUFFIX = ".deletion.json"
_DAMAGED = "Get the certificate again from whoever issued it; do not rely on this one."

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
    finished_unix_ms: UnixMs
    software_version: str
    rows: Mapping[str, int]
    """Database rows that went, by kind."""
    deleted: tuple[Deleted, ...]
    kept: tuple[str, ...]
    """What stays, in words."""
    audit_entries: int
    audit_head: str
    """Of the audit log after its entry about this deletion."""

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.deleted)


@dataclass(frozen=True)
class SiteSigner:
    """A site's certificate and key. PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Trust:
    """Whose signatures count: release keys by fingerprint, and the federation's authority (PEM)."""

    fingerprints: Collection[str] = ()
    authority: bytes = b""


def sign_by_release_key(record: DeletionRecord, release_key_pem: bytes) -> bytes:
    """The centre's certificate."""
    content = _canonical(record)
    return _file(content, json.loads(signature_of(release_key_pem, KIND, content).to_json()))


def sign_by_site(record: DeletionRecord, signer: SiteSigner) -> bytes:
    """A site's certificate."""
    content = _canonical(record)
    signature = base64.b64encode(sign(signer.key, KIND + content)).decode("ascii")
    return _file(content, {"certificate": signer.certificate.decode("ascii"), "signature": signature})


def read_deletion(data: bytes, trust: Trust) -> tuple[DeletionRecord, str]:
    """What the certificate says and who signed it, if that is somebody trusted and every byte is theirs."""
    if len(data) > MOST_BYTES:
        raise LimitError("the certificate of deletion is too large", hint=_DAMAGED)
    try:
        form = json.loads(data)
        json.dumps(form, ensure_ascii=False).encode()  # JSON can hold half a character, which no text can
    except (ValueError, RecursionError):
        raise _damaged("it cannot be read as JSON") from None
    match form:
        case {"format": int(other)} if other != FORMAT:
            raise IncompatibleError(
                f"the certificate of deletion is not of format {FORMAT}, the one that this software reads",
                hint="Update this software.",
            )
        case {"deletion": str(text), "signed": {"certificate": str(certificate), "signature": str(encoded)}}:
            content, record = _content(text)
            signer = _check_site(record, content, certificate.encode(), _decoded(encoded), trust)
        case {"deletion": str(text), "signed": dict(signed)}:
            content, record = _content(text)
            signer = _check_centre(record, content, signed, trust)
        case _:
            raise _damaged("it is not in its form")
    if _file(content, form["signed"]) != data:
        raise _damaged("it is not in its form")
    return record, signer


def deletion_lines(name: str, record: DeletionRecord, signer: str) -> list[str]:
    """What a certificate that was checked says, for people."""
    files = [one for one in record.deleted if one.kind != "answer"]
    rows = "".join(f"{count:,} {kind}, " for kind, count in record.rows.items())
    finished = datetime.fromtimestamp(record.finished_unix_ms / 1000, UTC)
    return [
        f"{name} is genuine, signed by {signer}",
        f"  study     {record.study}, at {record.owner}",
        f"  deleted   {rows}{len(files):,} file(s), {record.bytes:,} bytes",
        f"  finished  {finished:%Y-%m-%d %H:%M} UTC, by {record.actor}",
        *(f"  kept      {one}" for one in record.kept),
        f"  audit     entry {record.audit_entries}, {record.audit_head}",
    ]


def _check_centre(record: DeletionRecord, content: bytes, signed: object, trust: Trust) -> str:
    if record.place != "aggregator":
        raise _damaged("a site's deletion is not signed by a release key")
    signature: Signature = parse_signature(json.dumps(signed, sort_keys=True, separators=(",", ":")).encode())
    return f"release key {verify_signature(signature, KIND, content, trust.fingerprints)}"


def _check_site(
    record: DeletionRecord, content: bytes, certificate: bytes, signature: bytes, trust: Trust
) -> str:
    """The certificate must have been good when the deletion ended: later it ends or is renewed."""
    if not trust.authority:
        raise NotAllowedError(
            "a site signed it, and the federation's authority is not known here",
            hint="Give --ca the federation's ca.pem; an enrolled site has it in state/identity.",
        )
    moment = datetime.fromtimestamp(record.finished_unix_ms / 1000, UTC)
    found = verify_chain(certificate, trust.authority, moment)
    if record.place != "site" or found != Identity("site", record.owner):
        raise _damaged(f"it is signed by {found}, and says that it comes from {record.owner}")
    verify_with_certificate(certificate, KIND + content, signature)
    return str(found)


def _content(text: str) -> tuple[bytes, DeletionRecord]:
    try:
        content = text.encode()
        record = DeletionRecord.model_validate_json(content, strict=False)
    except (ValidationError, UnicodeEncodeError):
        raise _damaged("its content is not in its form") from None
    if _canonical(record) != content:
        raise _damaged("its content is not in its form")
    return content, record


def _canonical(record: DeletionRecord) -> bytes:
    form = record.model_dump(mode="json")
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _file(content: bytes, signed: object) -> bytes:
    form = {"format": FORMAT, "deletion": content.decode(), "signed": signed}
    return (json.dumps(form, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _damaged("its signature is not in its form") from None


def _damaged(reason: str) -> IntegrityError:
    return IntegrityError(f"the certificate of deletion cannot be used: {reason}", hint=_DAMAGED)
