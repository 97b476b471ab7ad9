"""The study plan: TOML in, one frozen and checked `StudyPlan` out.

`sections` are the plan's parts, `contradictions` what they must not say together, `wording`
turns validation faults into plain words, `reading` is the way in. The plan knows nothing of patient files
or of models.

In: TOML text.
Out: `StudyPlan`, or every problem at once.
May import: metrics and below.
"""

from __future__ import annotations

from fedmap.study.plan.reading import load_plan, parse_plan
from fedmap.study.plan.sections import (
    DataSection,
    Feature,
    FeatureBlock,
    FeatureColumn,
    LimitsSection,
    MissingRule,
    ModelSection,
    PositiveRule,
    RoundsSection,
    ScalingSection,
    SplitSection,
    StudySection,
    TaskSection,
    ThresholdRule,
)
from fedmap.study.plan.study_plan import StudyPlan

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
