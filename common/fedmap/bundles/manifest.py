"""What a bundle says of itself: `manifest.json`, the only part that is signed; all else it names by digest.

Values only. How it is written is `writing`, how it is checked is `verification`. Counts below the sites'
floor never reach the centre, so none can be here.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt, MinLen
from pydantic import StringConstraints

from fedmap.files.stored_zip import ZipForm
from fedmap.scoring.figures import CalibrationBin, Count, Estimate, Share, Short
from fedmap.shift.reference import Reference
from fedmap.study.plan.sections import Section

MANIFEST, SIGNATURE, MU, PSI, CARD, CALIBRATION = (
    "manifest.json",
    "manifest.sig",
    "mu.safetensors",
    "psi.safetensors",
    "card.md",
    "calibration.svg",
)
_MIB = 1 << 20
ARCHIVE = ZipForm(
    {
        MANIFEST: 16 * _MIB,
        SIGNATURE: 1024,
        MU: 1024 * _MIB,
        PSI: 2048 * _MIB,
        CARD: _MIB,
        CALIBRATION: _MIB,
    },
    permissions=0o100644,
    hint="Download the file again. If that does not help, ask the federation's operator.",
)

UPDATE = "Update this software. If it is the newest, tell the operator: the release is at fault."

SUFFIX = ".fedmap"
_NAME = r"[a-z0-9][a-z0-9-]{0,99}-t[23]"
_REFERENCE = re.compile(rf"({_NAME})(?:-([1-9][0-9]{{0,8}}))?")

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
BundleName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]
Moment = Annotated[int, Gt(0), Lt(253_402_300_800_000)]  # milliseconds since 1970, before the year 10000


def split_reference(reference: str) -> tuple[str, int | None] | None:
    """(name, version) of NAME or NAME-VERSION; None for what is neither, such as a path."""
    found = _REFERENCE.fullmatch(reference)
    return (found[1], int(found[2]) if found[2] else None) if found else None


class FileEntry(Section):
    """A file of the bundle, but for the manifest and its signature."""

    name: Literal["mu.safetensors", "psi.safetensors", "card.md", "calibration.svg"]
    size: Annotated[int, Gt(0)]
    sha256: Digest
    crc32: Annotated[int, Ge(0), Lt(1 << 32)]
    """What zip programs want to see; signed, so that nobody has to compute it to know it."""


class GateCount(Section):
    """How many answers the aggregator's gate, or a site itself, turned down for one reason."""

    code: Short
    count: Annotated[int, Gt(0)]


class Lineage(Section):
    """Where μ and ψ come from."""

    round: Count
    rounds: Annotated[int, Gt(0)]  # planned
    sites: Annotated[int, Gt(0)]  # whose updates stand behind this prior
    prior_digest: Digest
    accepted_updates: Count
    refused: tuple[GateCount, ...] = ()


class ScalerValues(Section):
    """The pooled scaler, exact: each float32 as the shortest text that reads back as itself."""

    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Gt(0)], ...]


class ThresholdValue(Section):
    """A probability at or above `value` counts as positive."""

    value: Share
    note: Short = ""


class BaselineValues(Section):
    """Breslow's cumulative baseline hazard at the plan's grid times."""

    grid: Annotated[tuple[float, ...], MinLen(1)]
    cumulative: Annotated[tuple[float, ...], MinLen(1)]


class TierPerformance(Section):
    """How a tier's kind of model did on test rows of sites that took part."""

    tier: Literal[1, 2, 3]
    model: Literal["personal", "fine_tuned", "global"]
    estimates: tuple[Estimate, ...] = ()
    note: Short = ""
    """How it was measured, or why it was not."""


class GroupEstimate(Section):
    """The global model in one group: a region, or a value of a category column of the plan."""

    kind: Literal["region", "subgroup"]
    name: Short
    rows: Count | None = None
    estimate: Estimate | None = None
    """None: suppressed, or not measurable; the note says which."""
    note: Short = ""


class MissingShare(Section):
    """Cells of one column that were empty, over all sites that let the count go."""

    column: Short
    rule: Short  # as the plan says it: refuse, exclude, or filled with a value
    share: Share | None = None
    note: Short = ""


class DataSummary(Section):
    """Whom the model was trained and tested on, in totals."""

    training_rows: Count
    training_events: Count | None = None
    test_rows: Count
    test_events: Count | None = None
    smallest_site: Count  # training rows
    largest_site: Count
    regions: tuple[str, ...] = ()
    missing: tuple[MissingShare, ...] = ()
    note: Short = ""
    """How the counts were rounded, and which sites did not tell one."""


class Draft(Section):
    """One release, but for the digests of its files: what the card is written from."""

    format: Literal[1] = 1
    name: BundleName
    version: Annotated[int, Gt(0)]
    study: str
    title: str
    intended_use: str
    tier: Literal[2, 3]
    released_unix_ms: Moment
    expires_unix_ms: Moment
    software_version: str
    terms_json: str
    """The study's terms, canonical: plan, rounds and seed. The plan is what data are checked against."""
    terms_digest: Digest
    plan_digest: Digest
    model: str
    inputs: tuple[str, ...]
    """Names of the model's inputs in their order: the frozen vocabulary."""
    lineage: Lineage
    scaler: ScalerValues
    threshold: ThresholdValue | None = None
    baseline: BaselineValues | None = None
    reference: Reference | None = None
    data: DataSummary | None = None
    performance: tuple[TierPerformance, ...] = ()
    calibration: tuple[CalibrationBin, ...] = ()
    groups: tuple[GroupEstimate, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}{SUFFIX}"


class Manifest(Draft):
    """One release, as it is signed."""

    files: Annotated[tuple[FileEntry, ...], MinLen(1)]

    @classmethod
    def of_draft(cls, draft: Draft, files: tuple[FileEntry, ...]) -> Manifest:
        """The draft with its files; files that a manifest has already are replaced."""
        return cls.model_validate({**dict(draft), "files": files})

    def to_json(self) -> bytes:
        """Canonical: what is signed."""
        form = self.model_dump(mode="json")
        return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def day(unix_ms: int) -> str:
    """The day in UTC, such as 2026-03-31."""
    return datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC).date().isoformat()
