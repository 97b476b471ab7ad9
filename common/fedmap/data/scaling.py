"""A loaded site in the model's scale: the pooled scaler of the federation, or the site's own.

Scaling only; where the pooled scaler comes from is `fedmap.algorithm.pooling.statistics`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.pooling.statistics import Scaler, feature_statistics, make_scaler
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.study.plan.study_plan import StudyPlan


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
