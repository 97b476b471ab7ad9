"""From rows to predictions: probability and class, or risk and log hazard. No file, no log.

A model that predicts is a bundle's shared model μ or the site's personal model; both are a `ReadyModel`. The
numbers are those of `fedmap.scoring.evaluation` for the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.pooling.baseline import Baseline
from fedmap.algorithm.pooling.statistics import Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.errors import ModelError, StateError
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.shift.reference import Reference
from fedmap.study.plan.study_plan import StudyPlan

if TYPE_CHECKING:
    from fedmap.bundles.verification import VerifiedBundle

PROBABILITY, CLASS, RISK, LOG_HAZARD = "probability", "class", "risk", "log_hazard"


@dataclass(frozen=True, eq=False)
class ReadyModel:
    """A verified model with all that prediction needs."""

    name: str  # of the bundle, with its version
    title: str
    intended_use: str
    personal: bool
    tier: int
    bundle_sha256: str
    expires_unix_ms: int
    plan: StudyPlan
    inputs: tuple[str, ...]
    model: Model
    parameters: SiteParameters
    scaler: Scaler
    rule: DecisionRule
    reference: Reference | None
    note: str = ""
    """What a user of this model should know, such as that fine-tuning did not help."""

    @property
    def scales_by_own_rows(self) -> bool:
        """The plan scales each site's rows by their own statistics, and a shared model brings none."""
        return self.plan.scaling.mode == "local" and not self.personal

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the classes; none for survival."""
        task = self.plan.task
        if task.kind == "cox":
            return ()
        return task.classes or ("0", "1")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers that each row gets."""
        kind = self.plan.task.kind
        if kind == "cox":
            return (RISK, LOG_HAZARD) if self.rule.baseline is not None else (LOG_HAZARD,)
        if kind == "binary":
            return (PROBABILITY,)
        return tuple(f"{PROBABILITY}_{label}" for label in self.labels)

    def refuse_if_expired(self, now_unix_ms: int) -> None:
        if self.expires_unix_ms <= now_unix_ms:
            raise StateError(
                f"{self.name} has expired",
                hint="Install the newest bundle of the study; fine-tune again where you had done so.",
            )


def shared_model(bundle: VerifiedBundle) -> ReadyModel:
    """μ with its shipped rule."""
    from fedmap.bundles.loading import load_shared

    manifest, shared = bundle.manifest, load_shared(bundle)
    return ReadyModel(
        name=f"{manifest.name}-{manifest.version}",
        title=manifest.title,
        intended_use=manifest.intended_use,
        personal=False,
        tier=manifest.tier,
        bundle_sha256=bundle.sha256,
        expires_unix_ms=manifest.expires_unix_ms,
        plan=shared.plan,
        inputs=manifest.inputs,
        model=shared.model,
        parameters=shared.parameters,
        scaler=shared.scaler,
        rule=shared.rule,
        reference=manifest.reference,
    )


@dataclass(frozen=True, eq=False)
class Predictions:
    """One entry per row."""

    numbers: Mapping[str, NDArray[np.float64]]  # by the names of `ReadyModel.columns`
    classes: NDArray[np.int64] | None  # indices of `ReadyModel.labels`; None for survival


class Predictor:
    """A model with its scaler, ready for any number of rows. Keeps nothing of them."""

    def __init__(self, ready: ReadyModel, scaler: Scaler | None = None) -> None:
        """`scaler` stands in where rows are scaled by their own statistics."""
        self.ready = ready
        self.scaler = scaler or ready.scaler
        self._horizon = _at_horizon(ready)

    def predict(self, features: Tensor) -> Predictions:
        """(rows, inputs) as they are checked, not scaled."""
        with torch.inference_mode():
            raw = self._outputs(features)
            kind = self.ready.plan.task.kind
            if kind == "cox":
                return Predictions(self._survival(raw[:, 0]), None)
            if kind == "binary":
                return self._binary(raw)
            by_class = torch.softmax(raw.double(), -1).numpy()
            columns = {name: by_class[:, at] for at, name in enumerate(self.ready.columns)}
            return Predictions(columns, np.argmax(by_class, axis=1))

    def _outputs(self, features: Tensor) -> Tensor:
        """The network's. One that is no finite number is an error."""
        network, parameters = self.ready.model.network, self.ready.parameters
        if features.ndim != 2 or features.shape[1] != network.inputs:
            raise ModelError(
                f"the model has {network.inputs} inputs, and the rows have {features.shape[-1]}",
                hint="Check the rows against the bundle's own plan.",
            )
        raw = network.predict_rows(parameters.theta, parameters.buffers, self.scaler.apply(features))
        if not bool(torch.isfinite(raw).all()):
            raise ModelError(
                "the model gives values that are not finite for some rows",
                hint="Check the ranges of the columns; if they are right, tell who released the bundle.",
            )
        return raw

    def _binary(self, raw: Tensor) -> Predictions:
        logit = raw[:, 0].double()
        if raw.shape[1] == 2:  # of two logits only the difference counts
            logit = raw[:, 1].double() - logit
        probability = torch.sigmoid(logit).numpy()
        threshold = self.ready.rule.threshold
        if threshold is None:
            raise StateError(
                f"{self.ready.name} has no decision threshold",
                hint="The bundle does not fit its plan; ask for it to be released again.",
            )
        return Predictions({PROBABILITY: probability}, (probability >= threshold.value).astype(np.int64))

    def _survival(self, log_hazard: Tensor) -> dict[str, NDArray[np.float64]]:
        columns = {LOG_HAZARD: log_hazard.double().numpy()}
        if self._horizon is None:
            return columns
        return {RISK: self._horizon.risk(log_hazard)[:, 0].numpy(), **columns}


def _at_horizon(ready: ReadyModel) -> Baseline | None:
    """The baseline hazard at the plan's horizon only."""
    baseline, horizon = ready.rule.baseline, ready.plan.task.horizon
    if baseline is None or horizon is None:
        return None
    return Baseline((horizon,), baseline.cumulative[-1:])  # the plan's grid ends there
