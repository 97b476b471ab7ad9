"""Bundles for tests: small studies of each kind, a draft with every figure, and the file that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import torch

from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.values import Prior, initial_prior
from fedmap.bundles.manifest import (
    ARCHIVE,
    MANIFEST,
    SIGNATURE,
    DataSummary,
    Draft,
    FileEntry,
    GateCount,
    GroupEstimate,
    Lineage,
    Manifest,
    MissingShare,
    TierPerformance,
)
from fedmap.bundles.verification import Trust
from fedmap.bundles.writing import (
    BundleFile,
    prior_parts,
    readable_parts,
    rule_values,
    scaler_values,
    write_bundle,
)
from fedmap.files.digests import sha256_hex
from fedmap.files.stored_zip import Member
from fedmap.metrics import Threshold
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.figures import CalibrationBin, Estimate
from fedmap.study.models import model_of
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.reading import parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.terms import StudyTerms
from fedmap.trust.signing import BUNDLE_KIND, fingerprint, public_key_of, signature_of
from tests import plans

RELEASED = 1_767_225_600_000  # 1 January 2026
EXPIRES = 1_798_761_600_000  # 1 January 2027
NOW = RELEASED + 86_400_000

_FEATURES = (plans.number("age", unit="years", range=[18, 110]), plans.category("sex", "F", "M"))
_BINARY = plans.binary("outcome", ["no", "yes"], threshold={"rule": "youden"})
_STUDY = {"title": "A tiny study", "intended_use": "Tests only. Not for patients."}
_SMALL = {"hidden": [3, 2]}


def _plan(
    task: plans.Table, prior: plans.Table, model: plans.Table = plans.LINEAR, name: str = "tiny"
) -> StudyPlan:
    return parse_plan(plans.plan_text(name, task, *_FEATURES, model=model, prior=prior, study=_STUDY), name)


BINARY = _plan(_BINARY, _SMALL)
NORMED = _plan(_BINARY, _SMALL, plans.mlp(4, batch_norm=True))
QUADRATIC = _plan(_BINARY, {"convex": False})
SURVIVAL = _plan(plans.cox("years", "event", 10), _SMALL, name="tiny-survival")


@dataclass(frozen=True)
class Released:
    """What a bundle was made of."""

    plan: StudyPlan
    prior: Prior
    scaler: Scaler
    rule: DecisionRule


def released(plan: StudyPlan = BINARY, seed: int = 1) -> Released:
    """A prior with no value left at its start."""
    network = model_of(plan).network
    torch.manual_seed(seed)
    start = initial_prior(network, plan.prior, network.initialise(seed))
    channels = start.buffers.mean.numel()
    buffers = Buffers(torch.randn(channels), torch.rand(channels), start.buffers.count + 7)
    prior = Prior(start.mu, buffers, torch.rand(start.psi.shape))
    scaler = Scaler(torch.randn(network.inputs), torch.rand(network.inputs) + 0.1)
    if plan.task.kind == "cox":
        hazard = torch.linspace(0.01, 0.1, len(plan.task.grid), dtype=torch.float64)
        return Released(plan, prior, scaler, DecisionRule(baseline=Baseline(plan.task.grid, hazard)))
    return Released(plan, prior, scaler, DecisionRule(Threshold(0.37)))


def draft_of(made: Released, tier: Literal[2, 3] = 2, version: int = 1, **changes: Any) -> Draft:
    """A release with every figure; `changes` replace fields."""
    terms = StudyTerms.of_plan(made.plan)
    threshold, baseline = rule_values(made.rule)
    metric = made.plan.task.metric
    fields: dict[str, Any] = {
        "name": f"{terms.study}-t{tier}",
        "version": version,
        "study": terms.study,
        "title": made.plan.study.title,
        "intended_use": made.plan.study.intended_use,
        "tier": tier,
        "released_unix_ms": RELEASED,
        "expires_unix_ms": EXPIRES,
        "software_version": "1.0.0",
        "terms_json": terms.to_json(),
        "terms_digest": terms.digest,
        "plan_digest": made.plan.digest,
        "model": made.plan.model.name,
        "inputs": tuple(f"input-{n}" for n in range(planned_inputs(made.plan).count)),
        "lineage": Lineage(
            round=terms.rounds,
            rounds=terms.rounds,
            sites=4,
            prior_digest="ab" * 32,
            accepted_updates=4 * terms.rounds,
            refused=(GateCount(code="norm", count=2),),
        ),
        "scaler": scaler_values(made.scaler),
        "threshold": threshold,
        "baseline": baseline,
        "data": DataSummary(
            training_rows=4200,
            training_events=630,
            test_rows=1050,
            test_events=157,
            smallest_site=310,
            largest_site=2100,
            regions=("North", "South"),
            missing=(
                MissingShare(column="age", rule="refuse", share=0.0),
                MissingShare(column="sex", rule="exclude", note="too few to tell at 4 of 4 sites"),
            ),
        ),
        "performance": _performance(metric),
        "calibration": tuple(
            CalibrationBin(predicted=p, observed=o, low=max(0.0, o - 0.05), high=min(1.0, o + 0.06), rows=n)
            for p, o, n in ((0.05, 0.04, 400), (0.15, 0.17, 300), (0.35, 0.33, 200), (0.7, 0.74, 150))
        ),
        "groups": (
            GroupEstimate(
                kind="region",
                name="North",
                rows=600,
                estimate=Estimate(metric=metric, value=0.81, low=0.7, high=0.89, sites=3),
            ),
            GroupEstimate(kind="region", name="South", note="suppressed: the figure of one site alone"),
            GroupEstimate(kind="subgroup", name="sex = M", rows=None, note="suppressed: too few rows"),
        ),
    }
    return Draft.model_validate(fields | changes)


def _performance(metric: str) -> tuple[TierPerformance, ...]:
    def estimate(name: str, value: float) -> Estimate:
        return Estimate(metric=name, value=value, low=value - 0.04, high=value + 0.03, sites=4)

    return (
        TierPerformance(tier=1, model="personal", estimates=(estimate(metric, 0.84),), note="own test rows"),
        TierPerformance(tier=2, model="fine_tuned", note="not measured: no site let a score go"),
        TierPerformance(
            tier=3,
            model="global",
            estimates=(
                estimate(metric, 0.8),
                estimate("calibration_slope", 0.93),
                estimate("calibration_intercept", -0.05),
            ),
        ),
    )


def write_example(
    path: Path,
    key: bytes,
    tier: Literal[2, 3] = 2,
    version: int = 1,
    made: Released | None = None,
    **changes: Any,
) -> BundleFile:
    """A signed bundle of a small study at `path`."""
    made = made or released()
    draft = draft_of(made, tier, version, **changes)
    return write_bundle(path, draft, prior_parts(made.plan, made.prior, tier) | readable_parts(draft), key)


def trust_of(key: bytes) -> Trust:
    """Trusts this key, and knows of nothing else."""
    return Trust(frozenset({fingerprint(public_key_of(key))}))


def forge(path: Path, written: bytes, parts: Mapping[str, bytes], key: bytes) -> Path:
    """A bundle in the right frame whose manifest is any bytes at all, signed with this key."""
    signed = signature_of(key, BUNDLE_KIND, written).to_json()
    return pack(path, [(MANIFEST, written), (SIGNATURE, signed), *parts.items()])


def pack(path: Path, contents: Sequence[tuple[str, bytes]]) -> Path:
    """The frame of a bundle around any members."""
    members = [Member(name, len(data), crc32(data)) for name, data in contents]
    stored = [member.header() + data for member, (_, data) in zip(members, contents, strict=True)]
    path.write_bytes(b"".join(stored) + ARCHIVE.directory(members))
    return path


def manifest_of(draft: Draft, parts: Mapping[str, bytes]) -> Manifest:
    """The manifest that fits these parts, or those that are among its names."""
    entries = tuple(
        FileEntry.model_validate(
            {"name": name, "size": len(data), "sha256": sha256_hex(data), "crc32": crc32(data)}
        )
        for name, data in parts.items()
    )
    return Manifest.of_draft(draft, entries)


def parts_of(made: Released, draft: Draft) -> dict[str, bytes]:
    """In the order of the archive."""
    return prior_parts(made.plan, made.prior, draft.tier) | readable_parts(draft)
