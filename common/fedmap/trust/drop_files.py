"""Drop files: rounds that travel through an airlock as signed files (form: proto/fedmap/v1/drop.proto).

Reading trusts nothing: a file is a stored zip of known members within known sizes, or it is refused. Reading
gives bytes whose digests fit; who signed them is asked by `DropFile.verify`, and a drop must not be used
before. What a drop means is the handlers' business.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import shutil
import struct
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError

from fedmap.contract.v1 import drop_pb2
from fedmap.errors import IncompatibleError, IntegrityError
from fedmap.files.digests import file_sha256, is_digest
from fedmap.files.durable import TEMPORARY, DurableWriter, storage_error
from fedmap.names import is_site_name
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import check_csr, sign, verify_chain, verify_signature, verify_with_key

FORMAT = 1
SUFFIX = ".fedmap-drop"

_CONTENT, _TENSORS, _SIGNER, _SIGNATURE = "content.pb", "tensors.safetensors", "signer.pem", "signature"
_MIB = 1024 * 1024
_PIECE = _MIB
_MAX_TABLE = 64 * 1024
_TAIL = 98  # end record, 64-bit locator and 64-bit end record
_DAMAGE = (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, RuntimeError, struct.error)
_STAMP = (1980, 1, 1, 0, 0, 0)  # the same drop gives the same bytes but for the signature
_HINT = "Ask the sender for the file again; do not use this one."


@dataclass(frozen=True)
class DropLimits:
    """Bytes that a reader takes at most."""

    content: int = 16 * _MIB
    tensors: int = 2048 * _MIB
    signer: int = 64 * 1024
    signature: int = 1024


@dataclass(frozen=True)
class DropFile:
    """A drop whose parts fit together. Unsigned paper until `verify` has been asked."""

    drop: drop_pb2.Drop
    tensors_path: Path | None  # a temporary file: the caller moves or removes it
    signer_chain_pem: bytes  # empty: signed by the key of the request inside
    signature: bytes
    signed: bytes  # the message that the signature is over

    def verify(self, ca_pem: bytes, now: datetime.datetime, expected: Identity) -> None:
        """`IntegrityError` or `NotAllowedError` unless `expected` signed it, with a certificate of this CA.

        An enrolment has no certificate yet: it must be signed by the key it asks a certificate for, and the
        token inside says the rest.
        """
        if self.drop.WhichOneof("content") == "enrolment":
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
            try:
                self.tensors_path.unlink(missing_ok=True)
            except OSError as error:
                raise storage_error(error, self.tensors_path) from error


def write(
    path: Path, drop: drop_pb2.Drop, tensors_path: Path | None, key_pem: bytes, chain_pem: bytes
) -> None:
    """Signs a drop and puts it at `path` durably. Format and tensors digest are filled in here."""
    whole = drop_pb2.Drop()
    whole.CopyFrom(drop)
    whole.format = FORMAT
    whole.tensors_digest = file_sha256(tensors_path) if tensors_path else ""
    content = whole.SerializeToString(deterministic=True)
    signature = sign(key_pem, _signed(content, whole.tensors_digest))
    with DurableWriter(path.parent) as writer:
        try:
            # Written through a second handle; the writer makes the same file durable and names it.
            with zipfile.ZipFile(writer.path, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_member(_CONTENT), content)
                if tensors_path is not None:
                    with (
                        tensors_path.open("rb") as source,
                        archive.open(_member(_TENSORS), "w", force_zip64=True) as target,
                    ):
                        shutil.copyfileobj(source, target, _PIECE)
                archive.writestr(_member(_SIGNER), chain_pem)
                archive.writestr(_member(_SIGNATURE), signature)
        except OSError as error:
            raise storage_error(error, path) from error
        writer.commit(path)


def read(path: Path, limits: DropLimits | None = None, folder: Path | None = None) -> DropFile:
    """Reads a drop file; tensors go to a temporary file in `folder` (default: the system's).

    Anything but the members, sizes and digests of the form is an `IntegrityError`.
    """
    limits = limits or DropLimits()
    try:
        with path.open("rb") as file:
            _check_frame(file, limits)
            with zipfile.ZipFile(file) as archive:
                return _read(archive, limits, folder)
    except _DAMAGE as error:
        raise _refused("it is damaged, or no drop file at all") from error
    except OSError as error:
        raise storage_error(error, path) from error


def _check_frame(file: BinaryIO, limits: DropLimits) -> None:
    """Size of the file and of its table of contents, before the zip library reads the table into memory."""
    size = file.seek(0, os.SEEK_END)
    if size > limits.content + limits.tensors + limits.signer + limits.signature + _MAX_TABLE:
        raise _refused("it is larger than the limit")
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    end = tail[-22:]
    if len(end) < 22 or end[:4] != b"PK\5\6" or end[20:] != b"\0\0":
        raise _refused("it is cut short, or no drop file at all")
    (table,) = struct.unpack_from("<L", end, 12)
    if tail[-42:-38] == b"PK\6\7" and len(tail) == _TAIL:  # the 64-bit form, for files of gigabytes
        (table,) = struct.unpack_from("<Q", tail, 40)
    if table > _MAX_TABLE:
        raise _refused("its table of contents is too large")


def _read(archive: zipfile.ZipFile, limits: DropLimits, folder: Path | None) -> DropFile:
    members = _checked_members(archive, limits)
    content = archive.read(members[_CONTENT])
    drop = _parsed(content)
    signer, signature = archive.read(members[_SIGNER]), archive.read(members[_SIGNATURE])
    if (_TENSORS in members) != bool(drop.tensors_digest):
        raise _refused("the tensors are missing, or are there without being named")
    tensors = _extracted(archive, members[_TENSORS], drop, folder) if drop.tensors_digest else None
    return DropFile(drop, tensors, signer, signature, _signed(content, drop.tensors_digest))


def _checked_members(archive: zipfile.ZipFile, limits: DropLimits) -> dict[str, zipfile.ZipInfo]:
    """The members by name: each known, there once, stored as it is, and within its limit."""
    allowed = {
        _CONTENT: limits.content,
        _TENSORS: limits.tensors,
        _SIGNER: limits.signer,
        _SIGNATURE: limits.signature,
    }
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()) or not members.keys() <= allowed.keys():
        raise _refused("it has members that a drop file does not have")
    if missing := allowed.keys() - members.keys() - {_TENSORS}:
        raise _refused(f"{min(missing)} is missing")
    for name, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise _refused(f"{name} is compressed")
        if info.file_size > allowed[name]:
            raise _refused(f"{name} is larger than the limit of {allowed[name]} bytes")
    return members


def _parsed(content: bytes) -> drop_pb2.Drop:
    try:
        drop = drop_pb2.Drop.FromString(content)
    except DecodeError as error:
        raise _refused("its content cannot be read") from error
    if drop.format != FORMAT:
        raise IncompatibleError(
            f"the drop file has format {drop.format}, and this software reads format {FORMAT}",
            hint="Update the older side.",
        )
    if drop.WhichOneof("content") is None or not is_site_name(drop.site):
        raise _refused("its content is incomplete")
    if drop.tensors_digest and not is_digest(drop.tensors_digest):
        raise _refused("its digest of the tensors is malformed")
    return drop


def _extracted(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, drop: drop_pb2.Drop, folder: Path | None
) -> Path:
    """The tensors in a temporary file, which stays only when their digest fits."""
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
    path, digest, whole = Path(name), hashlib.sha256(), False
    try:
        with os.fdopen(descriptor, "wb") as target, archive.open(member) as source:
            while piece := source.read(_PIECE):
                digest.update(piece)
                target.write(piece)
        whole = digest.hexdigest() == drop.tensors_digest
    finally:
        if not whole:
            path.unlink(missing_ok=True)
    if not whole:
        raise _refused("the tensors do not fit their digest")
    return path


def _signed(content: bytes, tensors_digest: str) -> bytes:
    return hashlib.sha256(content).digest() + bytes.fromhex(tensors_digest)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, _STAMP)


def _refused(reason: str) -> IntegrityError:
    return IntegrityError(f"the drop file cannot be used: {reason}", hint=_HINT)
