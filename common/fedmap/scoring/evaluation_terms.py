"""What the last evaluation says besides the metrics: how sure they are, calibration, and groups of patients.

Rows in, sums and scores out, with small cells joined or left out here, where the rows are; the exit gate then
checks what is left. The rule of the global model is given. What the sums of many sites become is pooled in
`calibration_bins` and `meta_analysis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedmap.metrics import MetricResult, SkippedMetric
from fedmap.metrics.follow_up import FollowUp, observed_risk
from fedmap.metrics.inputs import Bools, Floats
from fedmap.scoring.calibration_bins import BINS, BinTerms, bin_of, joined_bins
from fedmap.scoring.disclosure import is_small_cell, part_counts
from fedmap.scoring.evaluation import Scoring, outputs, probabilities
from fedmap.study.plan.inputs import subgroups_of
from fedmap.study.plan.study_plan import StudyPlan

FEW = "withheld: a cell of the group is below the site's floor"


@dataclass(frozen=True)
class Measured:
    """A metric and, where it is known, its standard error."""

    result: MetricResult
    standard_error: float | None = None


@dataclass(frozen=True)
class Subgroup:
    """The plan's metric in one category of one column."""

    column: str
    category: str
    rows: int | None  # None: withheld
    measured: Measured


def measure_with_errors(scoring: Scoring, only: Sequence[str] | None = None) -> tuple[Measured, ...]:
    """Every metric of the plan's kind of task, or some."""
    if not len(scoring.test):
        return tuple(Measured(result) for result in scoring.measure(only))
    scores = scoring.scores()
    results = scores.measure(only)
    errors = scores.errors(results, scoring.seed)
    return tuple(Measured(result, errors.get(result.name)) for result in results)


def calibration_terms(scoring: Scoring, floor: int) -> tuple[BinTerms, ...]:
    """Predicted against observed risk of a binary or survival model; nothing where there is no risk."""
    s = scoring
    if not len(s.test) or s.plan.task.kind == "multiclass":
        return ()
    raw = outputs(s.model, s.parameters, s.test.features)
    if s.plan.task.kind == "cox":
        if s.rule.baseline is None:
            return ()
        assert s.test.event is not None
        rows = FollowUp.checked(s.test.target.numpy(), s.test.event.numpy(), "test follow-up times")
        return _survival_terms(s.rule.baseline.risk(raw[:, 0])[:, -1], rows, s.plan, floor)
    return _binary_terms(probabilities(s.model, raw), s.test.target.numpy() == 1, floor)


def _binary_terms(risk: Tensor, happened: Bools, floor: int) -> tuple[BinTerms, ...]:
    risks, places = _placed(risk)
    rows = np.bincount(places, minlength=BINS)
    events = np.bincount(places[happened], minlength=BINS)

    def may_leave(run: Sequence[int]) -> bool:
        count, found = int(rows[list(run)].sum()), int(events[list(run)].sum())
        return count >= floor and not is_small_cell(found, floor) and not is_small_cell(count - found, floor)

    return tuple(
        _terms(risks[inside := np.isin(places, run)], float(happened[inside].sum()), float(inside.sum()))
        for run in joined_bins(places.tolist(), may_leave)
    )


def _survival_terms(risk: Tensor, rows: FollowUp, plan: StudyPlan, floor: int) -> tuple[BinTerms, ...]:
    """The observed risk of a run of bins is Kaplan and Meier's, so enough rows must reach the horizon."""
    risks, places = _placed(risk)
    assert plan.task.horizon is not None
    horizon = plan.task.horizon

    def may_leave(run: Sequence[int]) -> bool:
        inside = np.isin(places, run)
        found = observed_risk(FollowUp(rows.time[inside], rows.event[inside]), horizon)
        enough = int(inside.sum()) >= floor and found.followed >= floor
        return enough and not is_small_cell(found.events, floor)

    terms = []
    for run in joined_bins(places.tolist(), may_leave):
        inside = np.isin(places, run)
        found = observed_risk(FollowUp(rows.time[inside], rows.event[inside]), horizon)
        count = float(inside.sum())
        terms.append(_terms(risks[inside], found.risk * count, min(found.effective_rows, count)))
    return tuple(terms)


def _placed(risk: Tensor) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    risks = np.clip(risk.numpy().astype(np.float64), 0.0, 1.0)
    return risks, np.array([bin_of(one) for one in risks.tolist()], dtype=np.int64)


def _terms(risks: Floats, observed: float, effective: float) -> BinTerms:
    total = float(risks.sum())
    return BinTerms(bin_of(total / risks.size), risks.size, total, observed, effective)


@dataclass(frozen=True)
class GroupRows:
    """The test rows of one category of one column, and whether anything may be told of them."""

    column: str
    category: str
    rows: Bools
    told: bool


def subgroup_rows(scoring: Scoring, names: Sequence[str], floor: int) -> tuple[GroupRows, ...]:
    """Every category of every category column; `names` are those of the inputs.

    Of a group with a small cell nothing is told. Where the rows left out of a column are so few that the
    other groups give them away, nothing is told of the smallest of those either.
    """
    by_column: dict[str, dict[str, Bools]] = {}
    for column, category in subgroups_of(scoring.plan):
        by_column.setdefault(column, {})[category] = np.zeros(len(scoring.test), dtype=np.bool_)
    groups = []
    for column, rows_of in by_column.items():
        _fill(rows_of, column, scoring.test.features, names)
        told = _tellable(scoring, rows_of, floor)
        groups += [GroupRows(column, category, rows, category in told) for category, rows in rows_of.items()]
    return tuple(groups)


def subgroup_scores(scoring: Scoring, names: Sequence[str], floor: int) -> tuple[Subgroup, ...]:
    """The plan's metric in each category of each category column, with its error."""
    return tuple(
        _subgroup(scoring, group.column, group.category, group.rows, group.told)
        for group in subgroup_rows(scoring, names, floor)
    )


def _fill(rows_of: dict[str, Bools], column: str, features: Tensor, names: Sequence[str]) -> None:
    """Indicators are never scaled; the first category is where none of them is set."""
    first, *others = rows_of
    for category in others:
        rows_of[category] = features[:, list(names).index(f"{column}={category}")].numpy() == 1.0
    rows_of[first] = ~np.any([rows_of[category] for category in others], axis=0)


def _tellable(scoring: Scoring, rows_of: dict[str, Bools], floor: int) -> set[str]:
    counts = {category: int(rows.sum()) for category, rows in rows_of.items()}
    told = {
        category
        for category, rows in rows_of.items()
        if counts[category] and not part_counts(scoring.plan.task.kind, scoring.on(rows).test).is_small(floor)
    }
    while told and is_small_cell(sum(counts[category] for category in counts if category not in told), floor):
        told.remove(min(told, key=lambda category: (counts[category], category)))
    return told


def _subgroup(scoring: Scoring, column: str, category: str, rows: Bools, told: bool) -> Subgroup:
    metric = scoring.plan.task.metric
    if not told:
        count = int(rows.sum())
        reason = FEW if count else "no test rows"
        return Subgroup(column, category, None if count else 0, Measured(SkippedMetric(metric, reason)))
    (measured,) = measure_with_errors(scoring.on(rows), [metric])
    return Subgroup(column, category, int(rows.sum()), measured)
