"""The model's inputs as the plan alone fixes them, so that the centre can build a model without any data.

Equal to the layout that `fedmap.data.features` gives to a site's rows, but for the names of block columns,
which only the files know. A test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.study.plan.sections import Feature, FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan


@dataclass(frozen=True)
class PlannedInputs:
    """How many inputs the model has, which are standardised, and which belong together."""

    count: int
    scaled: tuple[bool, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    """(group, indices) in order of first appearance; features without one are in group ""."""


def planned_inputs(plan: StudyPlan) -> PlannedInputs:
    """The inputs in the plan's order."""
    scaled: list[bool] = []
    groups: dict[str, list[int]] = {}
    for feature in plan.features:
        first = len(scaled)
        scaled += _scaled(feature)
        groups.setdefault(feature.group, []).extend(range(first, len(scaled)))
    return PlannedInputs(
        count=len(scaled),
        scaled=tuple(scaled),
        groups=tuple((group, tuple(indices)) for group, indices in groups.items()),
    )


def subgroups_of(plan: StudyPlan) -> tuple[tuple[str, str], ...]:
    """(column, category) of every category column: the groups that a model is scored in by itself."""
    return tuple(
        (feature.name, category)
        for feature in plan.features
        if not isinstance(feature, FeatureBlock) and feature.kind == "category"
        for category in feature.categories
    )


def _scaled(feature: Feature) -> list[bool]:
    """One entry per input: a category has one for each value but its first, and they are never scaled."""
    if isinstance(feature, FeatureBlock):
        return [feature.scale] * feature.columns
    if feature.kind == "category":
        return [False] * (len(feature.categories) - 1)
    return [feature.scale]
