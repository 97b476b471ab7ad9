"""The gate's look at names, counts, calibration and groups: do they fit the plan, and each other?

Whatever a site sends here ends up in a bundle that clinics read, so nothing impossible is let in: a bin whose
mean lies elsewhere, more events than rows, a count below the plan's own floor, a column that the plan lacks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedmap.contract.v1.values import EvaluationAnswer, RiskBin, StatisticsAnswer, SubgroupScore
from fedmap.scoring.calibration_bins import BINS, bin_range
from fedmap.scoring.disclosure import is_small_cell
from fedmap.shift.told.terms import ReferenceTerms, check_reference
from fedmap.study.answer_names import layout_digest
from fedmap.study.plan.inputs import planned_inputs, subgroups_of
from fedmap.study.plan.sections import FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_aggregator.gate.headers import demand

_MOST_NAME = 200  # characters
_MOST_CELLS = 1_000_000_000_000
_ROUNDING = 1e-6
_FLOOR = "the plan's limits.min_cell holds for every site: update the agent, and keep its policy's floor"


def check_inputs(plan: StudyPlan, answer: StatisticsAnswer) -> None:
    """The names of the model's inputs, where they are sent: as the plan has them, and as the digest says."""
    names = answer.input_names
    if not names:
        return
    demand(layout_digest(names) == answer.layout_digest, "the inputs' names have another digest")
    demand(len(names) == planned_inputs(plan).count, "there are more or fewer inputs than the plan has")
    demand(len(set(names)) == len(names), "two inputs have the same name")
    plain = all(name.isprintable() and 0 < len(name) <= _MOST_NAME for name in names)
    demand(plain, f"an input's name is empty, unprintable or over {_MOST_NAME} characters")
    at = 0
    for feature in plan.features:
        if isinstance(feature, FeatureBlock):
            here = names[at : at + feature.columns]
            fits = list(here) == sorted(here) and all(name.startswith(feature.prefix) for name in here)
        else:
            here = (feature.name,)
            if feature.kind == "category":
                here = tuple(f"{feature.name}={category}" for category in feature.categories[1:])
            fits = names[at : at + len(here)] == here
        demand(fits, "the inputs' names are not those of the plan's features")
        at += len(here)


def check_counts(plan: StudyPlan, answer: StatisticsAnswer) -> None:
    """Events and empty cells."""
    if answer.events is not None:
        demand(plan.task.kind != "multiclass", "a multiclass task has no count of events")
        demand(answer.events <= answer.rows, "there are more events than rows")
        _check_floor(plan, answer.events, "events")
    if not answer.missing:
        return
    features = [f.prefix if isinstance(f, FeatureBlock) else f.name for f in plan.features]
    fits = [one.feature for one in answer.missing] == features
    demand(fits, "empty cells are not counted by the plan's features")
    for one in answer.missing:
        cells = one.cells or 0
        demand(cells <= one.of <= _MOST_CELLS, "more cells are empty than there are")
        _check_floor(plan, cells, "empty cells")


def check_reference_terms(plan: StudyPlan, terms: ReferenceTerms, most_rows: int) -> None:
    """The terms of the shift check: possible, of the plan's inputs, and without small cells."""
    check_reference(terms, most_rows)
    demand(terms.floor.item() >= plan.limits.min_cell, "reference terms were made for a lower floor", _FLOOR)
    scaled = tuple(bool(one) for one in terms.scaled)
    demand(scaled == planned_inputs(plan).scaled, "reference terms are of other inputs")


def check_evaluation(plan: StudyPlan, answer: EvaluationAnswer) -> None:
    """Counts, calibration and groups; the scores themselves are `updates`'s."""
    rows, events = answer.test_rows, answer.test_events
    if rows is not None:
        demand(rows <= _MOST_CELLS, "there are more test rows than any site has")
        _check_floor(plan, rows, "test rows")
    if events is not None:
        known = rows is not None and plan.task.kind != "multiclass" and events <= rows
        demand(known, "there are more test events than rows")
        _check_floor(plan, events, "test events")
    told = rows is not None or not (answer.calibration or answer.subgroups)
    demand(told, "test rows are not counted")
    _check_calibration(plan, answer.calibration, rows or 0)
    _check_subgroups(plan, answer.subgroups, rows or 0)


def _check_calibration(plan: StudyPlan, bins: Sequence[RiskBin], test_rows: int) -> None:
    demand(not bins or plan.task.kind != "multiclass", "a multiclass task has no calibration bins")
    places = [one.bin for one in bins]
    demand(places == sorted(places), "calibration bins do not rise")
    demand(all(place < BINS for place in places), "a calibration bin is beyond the grid")
    demand(sum(one.rows for one in bins) <= test_rows, "bins hold more rows than there are")
    for one in bins:
        values = (one.predicted, one.observed, one.effective_rows)
        demand(all(map(math.isfinite, values)), "a calibration bin is not finite")
        demand(one.rows > 0, "a calibration bin has no rows")
        _check_floor(plan, one.rows, "rows in a calibration bin")
        if plan.task.kind == "binary":
            events = round(one.observed)
            _check_floor(plan, events, "events in a calibration bin")
            _check_floor(plan, max(one.rows - events, 0), "rows without an event in a calibration bin")
        low, high = bin_range(one.bin)
        mean, slack = one.predicted / one.rows, _ROUNDING
        demand(low - slack <= mean <= high + slack, "a calibration bin's mean lies elsewhere")
        most = one.rows * (1 + _ROUNDING)
        demand(0 <= one.observed <= most, "a calibration bin has more events than rows")
        demand(0 < one.effective_rows <= most, "a calibration bin's effective rows are no count")


def _check_subgroups(plan: StudyPlan, groups: Sequence[SubgroupScore], test_rows: int) -> None:
    found = [(group.column, group.category) for group in groups]
    demand(len(set(found)) == len(found), "a group is scored twice")
    demand(set(found) <= set(subgroups_of(plan)), "a group is none of the plan's categories")
    by_column: Counter[str] = Counter()
    for group in groups:
        scored = group.score is not None and group.score.value is not None
        demand(group.rows is not None or not scored, "a group has a score without rows")
        _check_floor(plan, group.rows or 0, "rows in a group")
        by_column[group.column] += group.rows or 0
    fits = all(count <= test_rows for count in by_column.values())
    demand(fits, "groups hold more rows than there are")


def _check_floor(plan: StudyPlan, count: int, what: str) -> None:
    demand(
        not is_small_cell(count, plan.limits.min_cell), f"a count of {what} is below the plan's floor", _FLOOR
    )
