"""Drop files: rounds that travel through an airlock as signed files (form: proto/fedmap/v1/drop.proto).

Reading trusts nothing: a file is a stored zip of known members within known sizes, or it is refused. Reading
gives bytes whose digests fit; who signed them is asked by `DropFile.verify`, and a drop must not be used
before. What a drop means is the handlers' business.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import IncompatibleError, IntegrityError, LimitError, RejectedError
from fedmap.files.digests import is_digest
from fedmap.files.durable import TEMPORARY, DurableWriter, storage_error, storage_errors
from fedmap.files.stored_zip import Member, Source, ZipForm, ZipReader, measured, write_zip
from fedmap.names import is_site_name
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import check_csr, sign, verify_chain, verify_signature, verify_with_key

FORMAT = 1
SUFFIX = ".fedmap-drop"

_CONTENT, _TENSORS, _SIGNER, _SIGNATURE = "content.pb", "tensors.safetensors", "signer.pem", "signature"
_MIB = 1 << 20
_HINT = "Ask the sender for the file again; do not use this one."
FORM = ZipForm(
    {_CONTENT: 16 * _MIB, _TENSORS: 2048 * _MIB, _SIGNER: 64 * 1024, _SIGNATURE: 1024},
    permissions=0o600,
    hint=_HINT,
    streamed=frozenset({_TENSORS}),
)


@dataclass(frozen=True)
class DropFile:
    """A drop whose parts fit together. Unsigned paper until `verify` has been asked."""

    drop: values.Drop
    tensors_path: Path | None  # a temporary file: the caller moves or removes it
    signer_chain_pem: bytes  # empty: signed by the key of the request inside
    signature: bytes
    signed: bytes  # the message that the signature is over

    @property
    def kind(self) -> str:
        """What it holds, as the contract calls it."""
        return _kind(self.drop)

    def verify(self, ca_pem: bytes, now: datetime.datetime, expected: Identity) -> None:
        """`IntegrityError` or `NotAllowedError` unless `expected` signed it, with a certificate of this CA.

        An enrolment has no certificate yet: it must be signed by the key it asks a certificate for, and the
        token inside says the rest.
        """
        if self.drop.enrolment is not None:
            key = check_csr(self.drop.enrolment.csr_pem, expected)
            verify_with_key(key, self.signed, self.signature)
            return
        found = verify_chain(self.signer_chain_pem, ca_pem, now)
        if found != expected:
            raise IntegrityError(f"the file is signed by {found}, not by {expected}", hint=_HINT)
        verify_signature(self.signer_chain_pem, self.signed, self.signature)

    def discard(self) -> None:
        """Removes the extracted tensors, if they are still there."""
        if self.tensors_path is not None:
            with storage_errors(self.tensors_path):
                self.tensors_path.unlink(missing_ok=True)


def write(path: Path, drop: values.Drop, tensors_path: Path | None, key_pem: bytes, chain_pem: bytes) -> None:
    """Signs a drop and puts it at `path` durably. Format and tensors digest are filled in here."""
    sources: dict[str, Source] = {}
    known: dict[str, Member] = {}
    digest = ""
    if tensors_path is not None:
        sources[_TENSORS] = tensors_path
        known[_TENSORS], digest = measured(_TENSORS, tensors_path, FORM)
    content = wire.write(replace(drop, format=FORMAT, tensors_digest=digest))
    signature = sign(key_pem, _signed(content, digest))
    sources |= {_CONTENT: content, _SIGNER: chain_pem, _SIGNATURE: signature}
    with DurableWriter(path.parent) as writer:
        write_zip(writer.write, FORM, sources, known)
        writer.commit(path)


def read(path: Path, folder: Path | None = None, most_tensors: int = 0) -> DropFile:
    """Reads a drop file; tensors go to a temporary file in `folder` (default: the system's).

    Anything but the members, sizes and digests of the form is an `IntegrityError`. `most_tensors`: bytes,
    where the limit is another than the form's.
    """
    form = replace(FORM, limits={**FORM.limits, _TENSORS: most_tensors}) if most_tensors else FORM
    try:
        with path.open("rb", buffering=0) as file:
            return _read(ZipReader(file, form), folder)
    except (IntegrityError, LimitError) as error:
        raise IntegrityError(f"the drop file cannot be used: {error.message}", hint=_HINT) from error
    except OSError as error:
        raise storage_error(error, path) from error


def _read(reading: ZipReader, folder: Path | None) -> DropFile:
    content = reading.read(_CONTENT)
    drop = _parsed(content)
    tensors = _extracted(reading, drop, folder) if drop.tensors_digest else None
    try:
        signer, signature = reading.read(_SIGNER), reading.read(_SIGNATURE)
        reading.end()
    except BaseException:
        if tensors is not None:
            tensors.unlink(missing_ok=True)
        raise
    return DropFile(drop, tensors, signer, signature, _signed(content, drop.tensors_digest))


def _parsed(content: bytes) -> values.Drop:
    try:
        drop = wire.read(values.Drop, content)
    except RejectedError as error:
        raise _refused("its content cannot be read") from error
    if drop.format != FORMAT:
        raise IncompatibleError(
            f"the drop file has format {drop.format}, and this software reads format {FORMAT}",
            hint="Update the older side.",
        )
    if not _kind(drop) or not is_site_name(drop.site):
        raise _refused("its content is incomplete")
    if drop.tensors_digest and not is_digest(drop.tensors_digest):
        raise _refused("its digest of the tensors is malformed")
    return drop


def _extracted(reading: ZipReader, drop: values.Drop, folder: Path | None) -> Path:
    """The tensors in a temporary file, which stays only when their digest fits."""
    member = reading.member(_TENSORS)
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
    path, whole = Path(name), False
    try:
        with os.fdopen(descriptor, "wb") as target:
            whole = reading.copy(member, target.write) == drop.tensors_digest
    finally:
        if not whole:
            path.unlink(missing_ok=True)
    if not whole:
        raise _refused("the tensors do not fit their digest")
    return path


def _kind(drop: values.Drop) -> str:
    kinds = ("enrolment", "certificate", "offer", "approval", "task", "answer")
    return next((kind for kind in kinds if getattr(drop, kind) is not None), "")


def _signed(content: bytes, tensors_digest: str) -> bytes:
    return hashlib.sha256(content).digest() + bytes.fromhex(tensors_digest)


def _refused(reason: str) -> IntegrityError:
    return IntegrityError(reason, hint=_HINT)
