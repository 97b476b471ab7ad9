"""The plan's input columns as one float32 matrix, checked value by value, and the layout of the inputs.

Categories are encoded by the plan's list alone, so that every site's columns mean the same. Scaling is not
done here: it needs statistics of the whole federation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmap.data.table.columns import Column, Floats, Numbers, codes, is_missing, is_plain_number, numbers
from fedmap.data.table.faults import Fault, Mask
from fedmap.data.table.site_dataset import FeatureLayout, MissingCount
from fedmap.study.plan.sections import Feature, FeatureBlock, FeatureColumn


@dataclass(frozen=True, eq=False)
class EncodedFeatures:
    """The matrix, and what is wrong or worth knowing about it."""

    values: NDArray[np.float32]  # (rows, inputs); not to be used in rows with a fault
    layout: FeatureLayout
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(fault.problem(len(self.values)) for fault in self.faults)


@dataclass(frozen=True, eq=False)
class _Encoded:
    """The inputs one feature of the plan becomes."""

    values: Floats  # (rows, inputs)
    names: tuple[str, ...]
    scaled: bool
    faults: tuple[Fault, ...]
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


def count_missing(frame: pd.DataFrame, features: tuple[Feature, ...]) -> tuple[MissingCount, ...]:
    """Empty cells of each feature, whatever the plan makes of them."""
    counts = []
    for feature in features:
        present = _columns_of(frame, feature)
        cells = sum(int(_missing_cells(frame, feature, name).sum()) for name in present)
        counts.append(MissingCount(_name(feature), cells, len(frame) * len(present)))
    return tuple(counts)


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
        faults=tuple(fault for _, part in parts for fault in part.faults),
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
    values, filled = found.values, 0
    unknown = (values < 0) & ~found.missing
    categories = ", ".join(feature.categories)
    checks = [(unknown, "no category of the plan", f"are not among the categories {categories}")]
    if feature.missing.action == "fill":
        filled = int(found.missing.sum())
        fill = codes(pd.Series([feature.missing.fill], dtype=object), feature.categories).values[0]
        values = np.where(found.missing, fill, values)
    else:
        checks.append((found.missing, "missing", "are missing"))
    indicated = np.arange(1, len(feature.categories))  # the first category is the reference
    return _Encoded(
        values=(values[:, None] == indicated[None, :]).astype(np.float64),
        names=tuple(f"{feature.name}={category}" for category in feature.categories[1:]),
        scaled=False,
        faults=tuple(_fault(feature, [], w[:, None], short, words) for w, short, words in checks if w.any()),
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
        (not_numbers, "not a number", "are not numbers"),
        (infinite, "infinite or too large", "are infinite or too large"),
        (outside, "outside the range", f"lie outside {low:g} to {high:g}{unit}: check the unit"),
    ]
    if feature.missing.action != "fill":
        checks.append((missing, "missing", "are missing"))
    if feature.transform == "log1p":
        if feature.range is None:
            undefined = "are at or below -1, where log1p is not defined"
            checks.append((~infinite & (matrix <= -1), "at or below -1", undefined))
        with np.errstate(invalid="ignore", divide="ignore"):  # what is not defined is among the problems
            matrix = np.log1p(matrix)
    filled = 0
    if isinstance(feature.missing.fill, float):
        filled = int(missing.sum())
        fill = np.log1p(feature.missing.fill) if feature.transform == "log1p" else feature.missing.fill
        matrix = np.where(missing, fill, matrix)
    faults = tuple(_fault(feature, present, w, short, words) for w, short, words in checks if w.any())
    return _Encoded(matrix, tuple(present), feature.scale, faults, filled)


def _as_matrix(frame: pd.DataFrame, present: list[str]) -> tuple[Floats, Mask, Mask]:
    """Values (NaN where there is none), missing cells, cells that hold no number; each (rows, columns)."""
    if all(is_plain_number(dtype) for dtype in frame.dtypes[present]):
        matrix = frame[present].to_numpy(dtype=np.float64)
        return matrix, np.isnan(matrix), np.zeros(matrix.shape, dtype=np.bool_)
    columns: list[Numbers] = [numbers(frame[name]) for name in present]
    matrix = np.stack([column.values for column in columns], axis=1)
    missing = np.stack([column.missing for column in columns], axis=1)
    return matrix, missing, np.isnan(matrix) & ~missing


def _fault(feature: Feature, present: list[str], wrong: Mask, short: str, words: str) -> Fault:
    """`wrong` is (rows, columns)."""
    affected: tuple[str, ...] = ()
    if isinstance(feature, FeatureBlock):
        affected = tuple(present[column] for column in np.flatnonzero(wrong.any(axis=0)))
    return Fault(
        feature=_name(feature),
        short=short,
        words=words,
        cells=int(wrong.sum()),
        width=wrong.shape[1],
        rows=np.asarray(wrong.any(axis=1), dtype=np.bool_),
        columns=affected,
    )


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
