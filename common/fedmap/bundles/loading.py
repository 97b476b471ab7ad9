"""From a verified bundle to the things that predict and fine-tune: the same bits that were released.

Takes only a `VerifiedBundle`; each part's digest is compared again when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.values import Prior
from fedmap.bundles.manifest import MU, PSI, BaselineValues, ScalerValues, ThresholdValue
from fedmap.bundles.verification import VerifiedBundle
from fedmap.errors import StateError
from fedmap.metrics import Threshold
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.study.models import model_of
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import decode_parameters, decode_psi


@dataclass(frozen=True)
class SharedModel:
    """μ with all that turns rows of a file into decisions."""

    plan: StudyPlan
    model: Model
    parameters: SiteParameters
    scaler: Scaler
    rule: DecisionRule


def load_shared(bundle: VerifiedBundle) -> SharedModel:
    """The global model, for either tier."""
    plan = bundle.terms().plan
    model = model_of(plan)
    parameters = decode_parameters(model.network, bundle.part(MU), MU)
    written = bundle.manifest
    rule = rule_of(written.threshold, written.baseline)
    return SharedModel(plan, model, parameters, scaler_of(written.scaler), rule)


def load_prior(bundle: VerifiedBundle) -> Prior:
    """γ = (μ, ψ), to fine-tune under; `StateError` for a bundle that only predicts."""
    manifest = bundle.manifest
    if manifest.tier != 2:
        raise StateError(
            f"{manifest.file_name} is a tier-3 bundle: it predicts, and cannot be fine-tuned",
            hint=f"Ask the federation for the tier-2 bundle {manifest.study}-t2, or predict with this one.",
        )
    plan = bundle.terms().plan
    network = model_of(plan).network
    mu = decode_parameters(network, bundle.part(MU), MU)
    return Prior(mu.theta, mu.buffers, decode_psi(network, plan.prior, bundle.part(PSI), PSI))


def scaler_of(written: ScalerValues) -> Scaler:
    """The inverse of `writing.scaler_values`."""
    mean, deviation = (torch.tensor(part, dtype=torch.float32) for part in (written.mean, written.deviation))
    return Scaler(mean, deviation)


def rule_of(threshold: ThresholdValue | None, baseline: BaselineValues | None) -> DecisionRule:
    """The inverse of `writing.rule_values`."""
    return DecisionRule(
        Threshold(threshold.value, threshold.note or None) if threshold is not None else None,
        Baseline(baseline.grid, torch.tensor(baseline.cumulative, dtype=torch.float64))
        if baseline is not None
        else None,
    )
