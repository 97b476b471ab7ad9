"""Whether a bundle may be used, in nine steps. Offline: a file, the keys that are trusted, and the time.

    (1) format       the archive that we write, byte for byte, and a manifest that reads
    (2) size limits  of the file and of each member, before it is read
    (3) digests      every member is the one that the manifest names
    (4) signature    the manifest is signed by a trusted key
    (5) expiry       it is neither too old nor from the future
    (6) withdrawal   it is not on the list of withdrawn bundles
    (7) no rollback  it is not older than what was installed before
    (8) model        the model is known, the terms read, and their digests agree
    (9) shapes       every tensor and every table fits the model

The order of work differs in one point: (4) comes before all that looks inside. Nothing unsigned is parsed but
the frame and the signature itself, and no digest is worth anything before the signature over it.
The file is read once. Whoever reads a member later reads it by `VerifiedBundle.part`, which compares its
digest again: a file that was exchanged after its verification is not used either.

Installing, and keeping the list and the highest version, is the caller's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import FileIO
from pathlib import Path

from pydantic import ValidationError

from fedmap.bundles.manifest import ARCHIVE, CALIBRATION, CARD, MANIFEST, MU, PSI, SIGNATURE, UPDATE, Manifest
from fedmap.bundles.withdrawals import Withdrawals, check_expiry, check_rollback, check_withdrawal
from fedmap.errors import IncompatibleError, IntegrityError, LimitError, ModelError, PlanError, ServiceError
from fedmap.files.digests import file_sha256, sha256_hex
from fedmap.files.durable import storage_errors
from fedmap.files.stored_zip import ZipReader
from fedmap.files.tensors import head_size
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap.trust.signing import BUNDLE_KIND, parse_signature, verify_signature


@dataclass(frozen=True)
class Step:
    """One step that was passed."""

    number: int
    name: str
    finding: str


@dataclass(frozen=True)
class VerifiedBundle:
    """A file that passed all steps."""

    path: Path
    manifest: Manifest
    size: int
    key_fingerprint: str
    steps: tuple[Step, ...]
    offsets: Mapping[str, int] = field(repr=False)  # where each member's bytes begin

    @cached_property
    def sha256(self) -> str:
        """Of the whole file, as `sha256sum` gives it: a name only, verification goes by the parts."""
        return file_sha256(self.path)

    def card(self) -> str:
        """The model card, markdown."""
        return self.part(CARD).decode("utf-8", "replace")

    def calibration_picture(self) -> bytes | None:
        """SVG, where calibration was measured."""
        return self.part(CALIBRATION) if CALIBRATION in self.offsets else None

    def terms(self) -> StudyTerms:
        """The study's terms with the plan."""
        return parse_terms(self.manifest.terms_json, self.manifest.file_name)

    def part(self, name: str) -> bytes:
        """One member's bytes, compared with their digest again."""
        entry = next(entry for entry in self.manifest.files if entry.name == name)
        with storage_errors(self.path), self.path.open("rb") as file:
            file.seek(self.offsets[name])
            data = file.read(entry.size)
        if sha256_hex(data) != entry.sha256:
            raise IntegrityError(
                f"{self.path}: the file changed after it was verified",
                hint="Find out who writes to this folder; then verify the file again.",
            )
        return data


__all__ = ["NAMES", "Step", "Trust", "VerifiedBundle", "against_installed", "verify_bundle"]

NAMES = {
    1: "format",
    2: "size limits",
    3: "digests",
    4: "signature",
    5: "expiry",
    6: "withdrawal list",
    7: "no rollback",
    8: "model",
    9: "shapes",
}


_SIGNED = replace(ARCHIVE, hint=UPDATE)


@dataclass(frozen=True)
class Trust:
    """What a site or clinic knows before it looks at a file."""

    fingerprints: frozenset[str]  # in any spelling
    withdrawals: Withdrawals | None = None
    installed_version: int | None = None  # the highest ever installed under this bundle's name


def verify_bundle(path: Path, trust: Trust, now_unix_ms: int, *, label: str = "") -> VerifiedBundle:
    """All nine steps, or the error of the first that fails, which names the step.

    `label`: what errors call the file, by default its name.
    """
    label = label or path.name
    with storage_errors(path), _opened(path, label) as (file, size):
        return _Verification(path, label, size, ZipReader(file, ARCHIVE)).run(trust, now_unix_ms)


def against_installed(bundle: VerifiedBundle, version: int | None) -> VerifiedBundle:
    """Step (7) by itself, for who learns the bundle's name only from the verified manifest."""
    with _step(bundle.path.name, 7):
        finding = check_rollback(bundle.manifest, version)
    steps = (Step(7, NAMES[7], finding) if step.number == 7 else step for step in bundle.steps)
    return replace(bundle, steps=tuple(steps))


class _Verification:
    """The steps over one open file."""

    def __init__(self, path: Path, label: str, size: int, reading: ZipReader) -> None:
        self._path = path
        self._label = label
        self._size = size
        self._reading = reading
        self._findings: dict[int, str] = {}

    def run(self, trust: Trust, now_unix_ms: int) -> VerifiedBundle:
        with self._step(2):  # (2) the file as a whole
            if self._size > ARCHIVE.most_bytes:
                raise LimitError(f"no bundle has more than {ARCHIVE.most_bytes:,} bytes", hint=ARCHIVE.hint)
        with self._step(1):  # (1) the frame of the first two members
            if not self._size:
                raise _damaged("the file is empty")
            written, signed = self._reading.read(MANIFEST), self._reading.read(SIGNATURE)
            signature = parse_signature(signed)
        with self._step(4):  # (4)
            signer = verify_signature(signature, BUNDLE_KIND, written, trust.fingerprints)
            self._findings[4] = f"signed by {signer}, which is trusted"
        with self._step(1):  # (1) what is signed
            manifest = _manifest(written)
            self._check_layout(manifest)
        with self._step(2):  # (2) each member
            for entry in manifest.files:
                _SIGNED.check_size(entry.name, entry.size)
            self._findings[2] = f"{self._size:,} bytes, every file in it within its limit"
        with self._step(3):  # (3), and the rest of (1): the frame around the members
            heads = self._members_read(manifest)
        with self._step(5):  # (5)
            self._findings[5] = check_expiry(manifest, now_unix_ms)
        with self._step(6):  # (6)
            self._findings[6] = check_withdrawal(manifest, trust.withdrawals)
        with self._step(7):  # (7)
            self._findings[7] = check_rollback(manifest, trust.installed_version)
        from fedmap.bundles import fitness  # with torch: only a bundle that is genuine is worth the wait

        with self._step(8):  # (8)
            plan = fitness.check_terms(manifest).plan
            model = fitness.check_model(plan)
            self._findings[8] = f"{manifest.model} is known here; plan and terms fit their digests"
        with self._step(9):  # (9)
            fitness.check_tables(manifest, plan, model)
            fitness.check_tensors(manifest, plan, model, heads)
            self._findings[9] = (
                f"{model.network.spec.size:,} parameters for {model.network.inputs:,} inputs fit the model"
            )
        return VerifiedBundle(
            path=self._path,
            manifest=manifest,
            size=self._size,
            key_fingerprint=signer,
            steps=tuple(Step(number, NAMES[number], self._findings[number]) for number in sorted(NAMES)),
            offsets=self._reading.offsets,
        )

    def _check_layout(self, manifest: Manifest) -> None:
        """The members that this tier has, in their order, and a file that is as long as they make it."""
        names = [entry.name for entry in manifest.files]
        wanted = [MU, PSI, CARD] if manifest.tier == 2 else [MU, CARD]
        if names not in (wanted, [*wanted, CALIBRATION]):
            raise IncompatibleError("it does not have the files of its tier", hint=UPDATE)
        signed = sum(member.size for member in self._reading.members)
        frame = ARCHIVE.frame_size([MANIFEST, SIGNATURE, *names])
        length = frame + signed + sum(entry.size for entry in manifest.files)
        if self._size != length:
            what = "it was cut short" if self._size < length else "there are further bytes in it"
            raise _damaged(f"it has {self._size:,} bytes instead of {length:,}: {what}")
        self._findings[1] = f"format {manifest.format}: {len(names) + 2} files and nothing else"

    def _members_read(self, manifest: Manifest) -> dict[str, bytes]:
        """Every further member once from front to back; the first bytes of the tensors are kept."""
        heads: dict[str, bytes] = {}
        for entry in manifest.files:
            member = self._reading.member(entry.name)
            if (member.size, member.checksum) != (entry.size, entry.crc32):
                raise _damaged(f"the header of {entry.name} is not as signed")
            head = _Head()
            if self._reading.copy(member, head.grow if entry.name in (MU, PSI) else None) != entry.sha256:
                raise _damaged(f"{entry.name} is not the file that was signed")
            heads[entry.name] = bytes(head.kept)
        self._reading.end()
        self._findings[3] = f"SHA-256 of all {len(manifest.files)} files as signed"
        return heads

    def _step(self, number: int) -> AbstractContextManager[None]:
        return _step(self._label, number)


class _Head:
    """The first bytes of tensors, as many as their first piece asks for."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self._wanted = 0

    def grow(self, piece: bytes) -> None:
        self._wanted = self._wanted or head_size(piece)
        self.kept += piece[: max(0, self._wanted - len(self.kept))]


def _damaged(reason: str) -> IntegrityError:
    return IntegrityError(reason, hint=ARCHIVE.hint)


def _manifest(written: bytes) -> Manifest:
    """Signed as it is, so what does not read is no damage but another version of the software."""
    try:
        manifest = Manifest.model_validate_json(written)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80]
        raise IncompatibleError(
            f"its manifest is none that this software knows ({where or 'as a whole'})", hint=UPDATE
        ) from None
    if manifest.to_json() != written:
        raise IncompatibleError("its manifest is not in the canonical form", hint=UPDATE)
    if manifest.name != f"{manifest.study}-t{manifest.tier}":
        raise IncompatibleError("its name is not that of its study and tier", hint=UPDATE)
    if manifest.expires_unix_ms <= manifest.released_unix_ms:
        raise IncompatibleError("it expires before it is released", hint=UPDATE)
    return manifest


@contextmanager
def _step(label: str, number: int) -> Iterator[None]:
    """Errors inside say which step of which file failed; their kind and hint stay."""
    where = f"{label}: step {number}, {NAMES[number]}"
    try:
        yield
    except ServiceError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    except (PlanError, ModelError) as error:
        raise IncompatibleError(f"{where}: {error.message}", hint=UPDATE) from error


@contextmanager
def _opened(path: Path, label: str) -> Iterator[tuple[FileIO, int]]:
    """The file and its size. Only a real file: a pipe might never open, nor end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            with _step(label, 1):
                raise IntegrityError("this is no file", hint="Give the path of a file NAME-VERSION.fedmap.")
        yield FileIO(descriptor, closefd=False), status.st_size
    finally:
        os.close(descriptor)
