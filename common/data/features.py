"""The plan's input columns as one float32 matrix, checked value by value, and the layout of the inputs.

Categories are encoded by the plan's list alone, so that every site's columns mean the same. Scaling is not
done here: it needs statistics of the whole federation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from common.data.columns import Column, Floats, Mask, Numbers, codes, is_missing, is_plain_number, numbers
from common.data.site_dataset import FeatureLayout
from common.plan.features import Feature, FeatureBlock, FeatureColumn

_NAMED_COLUMNS = 3


@dataclass(frozen=True)
class EncodedFeatures:
    """The matrix, and what is wrong or worth knowing about it."""

    values: NDArray[np.float32]  # (rows, inputs); not to be used where there are problems
    layout: FeatureLayout
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Encoded:
    """The inputs one feature of the plan becomes."""

    values: Floats  # (rows, inputs)
    names: tuple[str, ...]
    scaled: bool
    problems: tuple[str, ...]
    filled: int = 0


def rows_to_exclude(frame: pd.DataFrame, features: tuple[Feature, ...]) -> tuple[tuple[str, Mask], ...]:
    """(reason, rows) for each feature whose missing values the plan answers by leaving the row out."""
    rules: list[tuple[str, Mask]] = []
    for feature in features:
        if feature.missing.action != "exclude":
            continue
        missing = np.zeros(len(frame), dtype=np.bool_)
        for name in _columns_of(frame, feature):
            missing |= _missing_cells(frame, feature, name)
        rules.append((f"{_name(feature)} missing", missing))
    return tuple(rules)


def encode_features(frame: pd.DataFrame, features: tuple[Feature, ...]) -> EncodedFeatures:
    """Checks and encodes every feature the frame has; absent columns are reported by the file's reader."""
    parts: list[tuple[Feature, _Encoded]] = []
    for feature in features:
        present = _columns_of(frame, feature)
        if present:
            parts.append((feature, _encode(frame, feature, present)))
    blocks = [part.values for _, part in parts]
    values = np.concatenate(blocks, axis=1) if blocks else np.zeros((len(frame), 0))
    with np.errstate(over="ignore"):  # a value too large is among the problems
        matrix = values.astype(np.float32)
    return EncodedFeatures(
        values=matrix,
        layout=_layout(parts),
        problems=tuple(problem for _, part in parts for problem in part.problems),
        notes=tuple(
            f"{_name(feature)}: {part.filled} missing values filled with the plan's value"
            for feature, part in parts
            if part.filled
        ),
    )


def _name(feature: Feature) -> str:
    return feature.prefix if isinstance(feature, FeatureBlock) else feature.name


def _columns_of(frame: pd.DataFrame, feature: Feature) -> list[str]:
    if isinstance(feature, FeatureBlock):
        return sorted(str(name) for name in frame.columns if str(name).startswith(feature.prefix))
    return [feature.name] if feature.name in frame else []


def _missing_cells(frame: pd.DataFrame, feature: Feature, name: str) -> Mask:
    if isinstance(feature, FeatureColumn) and feature.kind == "category":
        return codes(frame[name], feature.categories).missing
    return is_missing(frame[name])


def _encode(frame: pd.DataFrame, feature: Feature, present: list[str]) -> _Encoded:
    if isinstance(feature, FeatureColumn) and feature.kind == "category":
        return _encode_category(frame[feature.name], feature)
    return _encode_numbers(frame, feature, present)


def _encode_category(column: Column, feature: FeatureColumn) -> _Encoded:
    found = codes(column, feature.categories)
    values, problems, filled = found.values, [], 0
    missing = int(found.missing.sum())
    if found.unknown:
        problems.append(
            f"{feature.name}: {found.unknown} of {len(column)} values are not among the categories "
            f"{', '.join(feature.categories)}"
        )
    if missing and feature.missing.action == "fill":
        filled = missing
        fill = codes(pd.Series([feature.missing.fill], dtype=object), feature.categories).values[0]
        values = np.where(found.missing, fill, values)
    elif missing:
        problems.append(f"{feature.name}: {missing} of {len(column)} values are missing")
    indicated = np.arange(1, len(feature.categories))  # the first category is the reference
    return _Encoded(
        values=(values[:, None] == indicated[None, :]).astype(np.float64),
        names=tuple(f"{feature.name}={category}" for category in feature.categories[1:]),
        scaled=False,
        problems=tuple(problems),
        filled=filled,
    )


def _encode_numbers(frame: pd.DataFrame, feature: Feature, present: list[str]) -> _Encoded:
    """A column or a whole block at once: a block has thousands of columns and is handled as one matrix."""
    matrix, missing, not_numbers = _as_matrix(frame, present)
    low, high = feature.range if feature.range is not None else (-np.inf, np.inf)
    infinite = np.isinf(matrix) | (np.abs(matrix) > np.finfo(np.float32).max)
    outside = ~infinite & ((matrix < low) | (matrix > high))
    unit = f" {feature.unit}" if feature.unit else ""
    checks = [
        (not_numbers, "are not numbers"),
        (infinite, "are infinite or too large"),
        (outside, f"lie outside {low:g} to {high:g}{unit}: check the unit"),
    ]
    if feature.missing.action != "fill":
        checks.append((missing, "are missing"))
    if feature.transform == "log1p":
        if feature.range is None:
            checks.append((~infinite & (matrix <= -1), "are at or below -1, where log1p is not defined"))
        with np.errstate(invalid="ignore", divide="ignore"):  # what is not defined is among the problems
            matrix = np.log1p(matrix)
    filled = 0
    if isinstance(feature.missing.fill, float):
        filled = int(missing.sum())
        fill = np.log1p(feature.missing.fill) if feature.transform == "log1p" else feature.missing.fill
        matrix = np.where(missing, fill, matrix)
    problems = [_problem(feature, present, wrong, words) for wrong, words in checks if wrong.any()]
    return _Encoded(matrix, tuple(present), feature.scale, tuple(problems), filled)


def _as_matrix(frame: pd.DataFrame, present: list[str]) -> tuple[Floats, Mask, Mask]:
    """Values (NaN where there is none), missing cells, cells that hold no number; each (rows, columns)."""
    if all(is_plain_number(dtype) for dtype in frame.dtypes[present]):
        matrix = frame[present].to_numpy(dtype=np.float64)
        return matrix, np.isnan(matrix), np.zeros(matrix.shape, dtype=np.bool_)
    columns: list[Numbers] = [numbers(frame[name]) for name in present]
    matrix = np.stack([column.values for column in columns], axis=1)
    missing = np.stack([column.missing for column in columns], axis=1)
    return matrix, missing, np.isnan(matrix) & ~missing


def _problem(feature: Feature, present: list[str], wrong: Mask, words: str) -> str:
    text = f"{_name(feature)}: {int(wrong.sum())} of {wrong.size} values {words}"
    if isinstance(feature, FeatureColumn):
        return text
    affected = [present[column] for column in np.unique(np.nonzero(wrong)[1])]
    more = f" and {len(affected) - _NAMED_COLUMNS} more" if len(affected) > _NAMED_COLUMNS else ""
    return f"{text} (columns {', '.join(affected[:_NAMED_COLUMNS])}{more})"


def _layout(parts: list[tuple[Feature, _Encoded]]) -> FeatureLayout:
    names: list[str] = []
    scaled: list[bool] = []
    groups: dict[str, list[int]] = {}
    for feature, part in parts:
        first = len(names)
        names += part.names
        scaled += [part.scaled] * len(part.names)
        groups.setdefault(feature.group, []).extend(range(first, len(names)))
    return FeatureLayout(
        names=tuple(names),
        scaled=tuple(scaled),
        groups=tuple((group, tuple(indices)) for group, indices in groups.items()),
    )
