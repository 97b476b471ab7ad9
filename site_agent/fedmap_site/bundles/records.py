"""What a bundle store remembers of each name: the versions installed, and the highest there ever was.

    bundles/NAME/record.json

The record outlives the files: also after a removal an older version is refused, and a version keeps its
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedmap.bundles.manifest import SUFFIX
from fedmap.bundles.verification import VerifiedBundle
from fedmap.errors import IntegrityError
from fedmap.files.durable import read_file, write_durably
from fedmap.process.settings import Section


class Installed(Section):
    """One version that is installed here, or was; every fact comes from a verified manifest."""

    name: str
    version: int
    tier: int
    title: str
    sha256: str
    size: int
    released_unix_ms: int
    expires_unix_ms: int
    key: str
    """Fingerprint of the key that signed it."""
    installed_unix_ms: int
    removed: bool = False

    @property
    def reference(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.reference}{SUFFIX}"


def facts_of(bundle: VerifiedBundle, now_unix_ms: int) -> Installed:
    """What is remembered of a bundle that is installed now."""
    manifest = bundle.manifest
    return Installed(
        name=manifest.name,
        version=manifest.version,
        tier=manifest.tier,
        title=manifest.title,
        sha256=bundle.sha256,
        size=bundle.size,
        released_unix_ms=manifest.released_unix_ms,
        expires_unix_ms=manifest.expires_unix_ms,
        key=bundle.key_fingerprint,
        installed_unix_ms=now_unix_ms,
    )


class Record(Section):
    """Of one name."""

    highest: int = 0
    versions: tuple[Installed, ...] = ()

    def find(self, version: int) -> Installed | None:
        return next((one for one in self.versions if one.version == version), None)

    def with_entry(self, entry: Installed) -> Record:
        """The same with one version put in or changed."""
        others = [one for one in self.versions if one.version != entry.version]
        versions = tuple(sorted([*others, entry], key=lambda one: one.version))
        return Record(highest=max(self.highest, entry.version), versions=versions)


@dataclass(frozen=True)
class Records:
    """The records in the folder of a store. Whoever writes holds the store's lock."""

    folder: Path

    def read(self, name: str) -> Record:
        """Empty for a name that was never installed."""
        path = self.folder / name / "record.json"
        if not path.exists():
            return Record()
        try:
            return Record.model_validate_json(read_file(path), strict=True)
        except ValidationError:
            raise IntegrityError(
                f"{path}: the file is damaged",
                hint="Restore the folder of bundles from a backup; or move this folder away and install the "
                "newest version again.",
            ) from None

    def write(self, name: str, record: Record) -> None:
        path = self.folder / name / "record.json"
        write_durably(path, record.model_dump_json(indent=1).encode() + b"\n")

    def installed(self) -> tuple[Installed, ...]:
        """All that is installed, by name and version."""
        records = [self.read(path.parent.name) for path in self.folder.glob("*/record.json")]
        entries = [one for record in records for one in record.versions if not one.removed]
        return tuple(sorted(entries, key=lambda one: (one.name, one.version)))
