"""A small catalogue for the pages: bundles with made-up bytes, and a link that works once."""

from __future__ import annotations

import hashlib
import random
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedmap.bundles.manifest import MU, Manifest
from fedmap.errors import NotAllowedError, NotFoundError, StateError
from fedmap.study.plan.reading import load_plan
from fedmap.web.bundle_app import Access, Entry, Visitor
from tests.common.bundles.examples import RELEASED, draft_of, manifest_of, released

FINGERPRINT = "SHA256:" + " ".join(f"{16 * i:04x}" for i in range(16))
DAY_MS = 86_400_000
HEART = Path(__file__).resolve().parents[3] / "lab" / "fedmap_lab" / "plans" / "uci-heart.toml"


def manifest(tier: Literal[2, 3] = 3, version: int = 1, **changed: object) -> Manifest:
    """A release of the UCI Heart study, with every figure measured and ten years to go."""
    changed = {"expires_unix_ms": RELEASED + 3650 * DAY_MS} | changed
    return manifest_of(draft_of(released(load_plan(HEART)), tier, version, **changed), {MU: b"x"})


@dataclass
class Shelf:
    """A catalogue. `listing` opens the list to everybody; the token opens one bundle until it has arrived."""

    folder: Path
    entries_offered: dict[str, Entry] = field(default_factory=dict)
    listing: bool = True
    token: str = "open-sesame"
    linked: str = ""
    spent: bool = False
    visitors: list[Visitor] = field(default_factory=list)
    fetched: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Counts files that arrived without a link, `arrived` those that did by one."""
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    arrivals: list[str] = field(default_factory=list)
    signed_withdrawals: bytes | None = None
    fingerprint: str = FINGERPRINT

    def reset(self) -> None:
        """As on the first day: one bundle to have, and a link to it."""
        fresh = Shelf(self.folder)
        self.__dict__.update(fresh.__dict__)
        self.linked = self.put(manifest()).manifest.file_name

    def put(self, of: Manifest, size: int = 3_000_000, withdrawn: str = "") -> Entry:
        content = random.Random(of.file_name).randbytes(size)
        (self.folder / of.file_name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        entry = Entry(of, digest, size, may_download=not withdrawn, withdrawn=withdrawn)
        self.entries_offered[of.file_name] = entry
        return entry

    def bytes_of(self, entry: Entry) -> bytes:
        return (self.folder / entry.manifest.file_name).read_bytes()

    def allowed(self, visitor: Visitor) -> Access:
        self.visitors.append(visitor)
        return Access(
            self.listing, "" if self.listing else "This server shows its models to clinics it knows."
        )

    def entries(self, visitor: Visitor) -> tuple[Entry, ...]:
        if not visitor.token:
            return tuple(self.entries_offered.values())
        if visitor.token != self.token:
            raise NotFoundError("There is no such download link.", hint="Copy the whole link.")
        if self.spent:
            raise StateError("This download link has been used.", hint="Ask for a new link.")
        return (replace(self.entries_offered[self.linked], may_download=True),)

    def open(self, visitor: Visitor, file_name: str) -> Path:
        (entry,) = (e for e in self.entries(visitor) if e.manifest.file_name == file_name)
        if not entry.may_download:
            raise NotAllowedError("This model was withdrawn.", hint="Use a newer version.")
        return self.folder / file_name

    def finished(self, visitor: Visitor, file_name: str) -> None:
        if visitor.token:
            self.spent = True
            self.arrivals.append(file_name)
            self.arrived.release()
        else:
            self.fetched.release()

    def withdrawals(self) -> bytes | None:
        return self.signed_withdrawals

    def key_fingerprint(self) -> str:
        return self.fingerprint
