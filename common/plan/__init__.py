"""The study plan: TOML in, one frozen and checked `StudyPlan` out.

`sections` and `features` are the plan's parts, `contradictions` what they must not say together, `wording`
turns validation faults into plain words, `reading` is the way in. The plan knows nothing of patient files
or of models.
"""

from __future__ import annotations

from common.plan.features import Feature, FeatureBlock, FeatureColumn, MissingRule
from common.plan.reading import load_plan, parse_plan
from common.plan.sections import (
    DataSection,
    LimitsSection,
    ModelSection,
    PositiveRule,
    RoundsSection,
    ScalingSection,
    SplitSection,
    StudySection,
    TaskSection,
    ThresholdRule,
)
from common.plan.study_plan import StudyPlan

__all__ = [
    "DataSection",
    "Feature",
    "FeatureBlock",
    "FeatureColumn",
    "LimitsSection",
    "MissingRule",
    "ModelSection",
    "PositiveRule",
    "RoundsSection",
    "ScalingSection",
    "SplitSection",
    "StudyPlan",
    "StudySection",
    "TaskSection",
    "ThresholdRule",
    "load_plan",
    "parse_plan",
]
