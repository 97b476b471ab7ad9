"""What the loaders hand on: one site's rows as tensors, with what was left out and what is odd about them.

No identifier and no column of the file survives into these classes, only the names of the model's inputs.
Scaling is the plan's: by the pooled scaler of the federation, or by the site's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.pooling.statistics import Scaler, feature_statistics, make_scaler
from fedmap.study.plan.study_plan import StudyPlan


@dataclass(frozen=True)
class FeatureLayout:
    """The model's inputs, in order."""

    names: tuple[str, ...]
    """For example "sbp" or, for a category, "smoking=current"."""
    scaled: tuple[bool, ...]
    """Which are standardised; indicators never are."""
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    """(group, indices) in order of first appearance; features without one are in group ""."""


@dataclass(frozen=True)
class Exclusion:
    """Rows left out by a rule. Each row counts once, under the first rule that drops it."""

    reason: str
    rows: int


@dataclass(frozen=True)
class MissingCount:
    """Empty cells of one feature of the plan, before rows were left out for them."""

    feature: str  # name or prefix
    cells: int
    of: int  # cells that were looked at


@dataclass(frozen=True)
class SiteDataset:
    """One site's data, checked against the plan."""

    site: str
    layout: FeatureLayout
    train: Examples
    validation: Examples
    test: Examples
    exclusions: tuple[Exclusion, ...]
    notes: tuple[str, ...]
    """What a reader of the results should know, such as a training part with one class only."""
    missing: tuple[MissingCount, ...] = ()
    """One for each feature of the plan, over all parts together."""


def scale_dataset(plan: StudyPlan, data: SiteDataset, pooled: Scaler) -> SiteDataset:
    """All parts scaled as the plan says; `TrainingError` where a site has too few rows of its own for it."""
    scaler = site_scaler(plan, data, pooled)

    def scale(part: Examples) -> Examples:
        return replace(part, features=scaler.apply(part.features))

    return replace(data, train=scale(data.train), validation=scale(data.validation), test=scale(data.test))


def site_scaler(plan: StudyPlan, data: SiteDataset, pooled: Scaler) -> Scaler:
    """What the plan scales a site's rows by."""
    if plan.scaling.mode == "pooled":
        return pooled
    parts = [data.train.features, data.validation.features]
    own = torch.cat(parts) if len(data.train) else data.test.features
    return make_scaler(feature_statistics(own), data.layout.scaled)
