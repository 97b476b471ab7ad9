"""Sums that a site sends instead of rows: could rows within the plan's ranges have given them?

A mean outside its feature's range, or a spread that the range does not allow, would scale the inputs of every
site. The plan's own words are the only measure: no site is compared with another here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from fedmap.algorithm.pooling.baseline import BaselineTerms
from fedmap.errors import RejectedError
from fedmap.study.plan.sections import Feature, FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import decode_statistics

_ROUNDING = 1e-6  # relative: rows are float32, their sums are taken in some order
_LARGEST = torch.finfo(torch.float32).max / 4  # so that pooled sums stay within float32
_MOST_EVENTS = 1e9
_LEAST_RISK = 1e-200  # of a row at risk, e^η: what is divided by it stays finite
_HINT = "check units and encoding of the site's columns against the plan; then answer again"
Bounds = tuple[float, float]


def check_statistics(plan: StudyPlan, tensors: Path, rows: int) -> None:
    """Mean within the plan's range; M2 no more than values at both ends of it give."""
    bounds = torch.tensor(list(_bounds(plan)), dtype=torch.float64)  # (inputs, 2)
    statistics = decode_statistics(tensors, rows, len(bounds))
    low, high = bounds[:, 0], bounds[:, 1]
    slack = _ROUNDING * torch.maximum(low.abs(), high.abs()).clamp(min=1.0)
    outside = (statistics.mean < low - slack) | (statistics.mean > high + slack)
    if bool(outside.any()):
        raise RejectedError(
            f"the mean of {_name(plan, outside)} lies outside the range that the plan gives", hint=_HINT
        )
    most = rows * ((high - low) / 2 + slack).square()  # half of the rows at each end
    wide = statistics.m2 > most
    if bool(wide.any()):
        raise RejectedError(
            f"the spread of {_name(plan, wide)} is more than the plan's range allows", hint=_HINT
        )


def check_baseline(terms: BaselineTerms) -> None:
    """Each event has its place in an interval; who is at risk at the end was so at the start."""
    rounding = 1 + _ROUNDING
    if float(terms.events.sum()) > _MOST_EVENTS or bool((terms.risk_start > 1 / _LEAST_RISK).any()):
        raise RejectedError("baseline terms are absurdly large", hint=_HINT)
    if bool(((terms.events > 0) & (terms.risk_start < _LEAST_RISK)).any()):
        raise RejectedError("baseline terms have events where nobody is at risk", hint=_HINT)
    if bool((terms.position > terms.events * rounding).any()):
        raise RejectedError("baseline terms place events beyond the end of their interval", hint=_HINT)
    if bool((terms.risk_end > terms.risk_start * rounding).any()):
        raise RejectedError("baseline terms have more at risk at the end of an interval", hint=_HINT)


def _bounds(plan: StudyPlan) -> Iterator[Bounds]:
    """Least and largest value of each input, in order."""
    for feature in plan.features:
        if not isinstance(feature, FeatureBlock) and feature.kind == "category":
            yield from [(0.0, 1.0)] * (len(feature.categories) - 1)
        else:
            columns = feature.columns if isinstance(feature, FeatureBlock) else 1
            yield from [_of_numbers(feature)] * columns


def _of_numbers(feature: Feature) -> Bounds:
    """The plan's range as the model sees it; a fill value lies within. What is not scaled is sent as 0."""
    logged = feature.transform == "log1p"
    low, high = feature.range or (-1.0 if logged else -_LARGEST, _LARGEST)
    if logged:
        low, high = math.log1p(low) if low > -1 else -_LARGEST, math.log1p(high)
    return (low, high) if feature.scale else (min(low, 0.0), max(high, 0.0))


def _name(plan: StudyPlan, wrong: torch.Tensor) -> str:
    """The feature of the first wrong input."""
    first, at = int(wrong.nonzero()[0]), 0
    for feature in plan.features:
        if isinstance(feature, FeatureBlock):
            name, inputs = f"a column of {feature.prefix}…", feature.columns
        else:
            name = feature.name
            inputs = len(feature.categories) - 1 if feature.kind == "category" else 1
        at += inputs
        if first < at:
            return name
    raise IndexError(first)
