"""A bundle that passed verification. Its parts are read by digest: what was exchanged since is not used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedmap.bundles.manifest import CALIBRATION, CARD, Manifest
from fedmap.errors import IntegrityError
from fedmap.files.digests import file_sha256, sha256_hex
from fedmap.files.durable import storage_errors
from fedmap.study.terms import StudyTerms, parse_terms


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
