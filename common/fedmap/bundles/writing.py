"""One file from a draft and its parts, signed: the same draft, parts and key give the same bytes.

Parts may be files; they are read in pieces, once for their digests and once to be copied. A bundle that this
software would refuse itself is never given its name: what was written is verified before it is committed.
Which figures a release has is the aggregator's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.bundles.card.picture import calibration_svg
from fedmap.bundles.card.text import model_card
from fedmap.bundles.manifest import (
    ARCHIVE,
    CALIBRATION,
    CARD,
    MANIFEST,
    MU,
    PSI,
    SIGNATURE,
    BaselineValues,
    Draft,
    FileEntry,
    Manifest,
    ScalerValues,
    ThresholdValue,
)
from fedmap.bundles.verification import Trust, verify_bundle
from fedmap.errors import IntegrityError
from fedmap.files.durable import DurableWriter
from fedmap.files.stored_zip import measured, write_zip
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.study.models import model_of
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import encode_parameters, encode_psi
from fedmap.trust.signing import BUNDLE_KIND, fingerprint, public_key_of, signature_of

_WRITTEN = replace(
    ARCHIVE, hint="A model of this size cannot be released; use a smaller one, or prior.sketch."
)


@dataclass(frozen=True)
class BundleFile:
    """A bundle that was written."""

    path: Path
    manifest: Manifest
    sha256: str
    size: int


def write_bundle(
    path: Path, draft: Draft, parts: Mapping[str, bytes | Path], release_key_pem: bytes
) -> BundleFile:
    """Puts the bundle at `path` durably. `parts`: by the names of the manifest's files."""
    order = [name for name in ARCHIVE.limits if name in parts]
    if unknown := set(parts) - set(order) | set(parts) & {MANIFEST, SIGNATURE}:
        raise ValueError(f"a bundle has no part {min(unknown)}")
    known, entries = {}, []
    for name in order:
        known[name], digest = measured(name, parts[name], _WRITTEN)
        size, checksum = known[name].size, known[name].checksum
        entry = {"name": name, "size": size, "sha256": digest, "crc32": checksum}
        entries.append(FileEntry.model_validate(entry))
    manifest = Manifest.of_draft(draft, tuple(entries))
    written = manifest.to_json()
    signed = signature_of(release_key_pem, BUNDLE_KIND, written).to_json()
    with DurableWriter(path.parent) as writer:
        write_zip(writer.write, _WRITTEN, {MANIFEST: written, SIGNATURE: signed, **parts}, known)
        # A part that changed between its two readings, or does not fit the model, shows here.
        trust = Trust(frozenset({fingerprint(public_key_of(release_key_pem))}))
        found = verify_bundle(writer.finish(), trust, manifest.released_unix_ms, label=path.name)
        if found.sha256 != writer.digest:
            raise IntegrityError(
                f"{path}: what was written is not what the disk gives back",
                hint="Check the disk and the system's log, then release again.",
            )
        writer.commit(path)
        return BundleFile(path, manifest, writer.digest, writer.size)


def prior_parts(plan: StudyPlan, prior: Prior, tier: int) -> dict[str, bytes]:
    """μ with its batch-norm statistics, and ψ for tier 2; a quadratic prior has a ψ without tensors."""
    network = model_of(plan).network
    parts = {MU: encode_parameters(network, SiteParameters(prior.mu, prior.buffers))}
    return parts | ({PSI: encode_psi(network, plan.prior, prior.psi)} if tier == 2 else {})


def readable_parts(draft: Draft) -> dict[str, bytes]:
    """The model card, and the picture where calibration was measured."""
    parts = {CARD: model_card(draft).encode()}
    if draft.calibration:
        parts[CALIBRATION] = calibration_svg(draft.calibration, draft.title).encode()
    return parts


def scaler_values(scaler: Scaler) -> ScalerValues:
    """The scaler as it stands in the manifest."""
    return ScalerValues(mean=_shortest(scaler.mean.numpy()), deviation=_shortest(scaler.deviation.numpy()))


def rule_values(rule: DecisionRule) -> tuple[ThresholdValue | None, BaselineValues | None]:
    """Threshold and baseline as they stand in the manifest."""
    threshold, baseline = rule.threshold, rule.baseline
    return (
        ThresholdValue(value=threshold.value, note=threshold.note or "") if threshold is not None else None,
        BaselineValues(grid=baseline.grid, cumulative=tuple(baseline.cumulative.tolist()))
        if baseline is not None
        else None,
    )


def _shortest(values: np.typing.NDArray[np.float32]) -> tuple[float, ...]:
    """Each float32 as the double of its shortest decimal text, or as its own double where that differs."""
    texts = [float(str(value)) for value in values]
    return tuple(
        text if np.float32(text) == value else float(value) for text, value in zip(texts, values, strict=True)
    )
