"""What a feature must not say of itself, and which columns must not be used twice.

An outcome or an identifier among the inputs is the worst fault a plan can have: the model would look perfect
and know nothing. It is caught here, also when it hides in a block of columns behind a prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fedmap.process.problems import Fault
from fedmap.study.plan.features import Feature, FeatureBlock, FeatureColumn
from fedmap.study.plan.values import canonical_text

_NUMBER_ONLY = ("range", "unit", "transform", "scale")


def duplicates(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, in order of first appearance."""
    return [name for name, count in Counter(names).items() if count > 1]


def feature_faults(path: str, feature: Feature) -> Iterator[Fault]:
    """Contradictions inside one entry of the features."""
    if isinstance(feature, FeatureColumn) and feature.kind == "category":
        yield from _category_faults(path, feature)
        return
    if isinstance(feature, FeatureColumn) and feature.categories:
        yield Fault(f"{path}.categories", "belongs to a category, and this is a number")
    if feature.range is not None:
        yield from _range_faults(path, feature, *feature.range)
    if isinstance(feature.missing.fill, str):
        yield Fault(f"{path}.missing", "the fill of a number must be a number")


def _range_faults(path: str, feature: Feature, low: float, high: float) -> Iterator[Fault]:
    if low >= high:
        yield Fault(f"{path}.range", "the lower end must be below the upper end")
        return
    if feature.transform == "log1p" and low <= -1:
        yield Fault(f"{path}.range", "log1p is not defined at -1 and below")
    fill = feature.missing.fill
    if isinstance(fill, float) and not low <= fill <= high:
        yield Fault(f"{path}.missing", "the fill lies outside the range")


def _category_faults(path: str, feature: FeatureColumn) -> Iterator[Fault]:
    known = [canonical_text(category) for category in feature.categories]
    if len(known) < 2:
        yield Fault(f"{path}.categories", "a category needs at least two categories")
    if duplicates(known):
        yield Fault(f"{path}.categories", "names a category twice (numbers are compared as numbers)")
    for key in _NUMBER_ONLY:
        if key in feature.model_fields_set:
            yield Fault(f"{path}.{key}", "belongs to a number, and this is a category")
    if feature.missing.fill is not None and canonical_text(feature.missing.fill) not in known:
        yield Fault(f"{path}.missing", "the fill is not one of the categories")


def overlap_faults(
    features: tuple[tuple[int, Feature], ...], roles: list[tuple[str, str]]
) -> Iterator[Fault]:
    """Columns used twice: two roles, two features, or (a leak) a role and a feature."""
    for position, (path, column) in enumerate(roles):
        for other, used in roles[:position]:
            if used == column:
                yield Fault(path, f"is the same column as {other}")
    for path, column in roles:
        for index, feature in features:
            if _covers(feature, column):
                yield Fault(
                    _where(index, feature), f"takes in the column of {path}, which must not be an input"
                )
    for position, (index, feature) in enumerate(features):
        for earlier, other_feature in features[:position]:
            if _overlap(feature, other_feature):
                yield Fault(_where(index, feature), f"takes in a column of features[{earlier}] again")


def _where(index: int, feature: Feature) -> str:
    return f"features[{index}].{'prefix' if isinstance(feature, FeatureBlock) else 'name'}"


def _covers(feature: Feature, column: str) -> bool:
    if isinstance(feature, FeatureBlock):
        return column.startswith(feature.prefix)
    return column == feature.name


def _overlap(one: Feature, other: Feature) -> bool:
    if isinstance(one, FeatureColumn):
        return _covers(other, one.name)
    if isinstance(other, FeatureColumn):
        return _covers(one, other.name)
    return one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)
