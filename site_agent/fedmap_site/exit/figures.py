"""The exit gate's look at counts, calibration and groups: a small cell among them is a defect, and stops all.

The trainer has joined or left out small cells where the rows are. Here the message itself is judged, by
counts alone, so that a fault there cannot let one out. `ModelError` says that the agent is at fault.
"""

from __future__ import annotations

from fedmap.contract.v1.values import EvaluationAnswer, StatisticsAnswer
from fedmap.errors import ModelError
from fedmap.scoring.disclosure import is_small_cell
from fedmap.shift.told.terms import ReferenceTerms, check_reference
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_site.data.cell_counts import CellCounts

DEFECT = "Report this as a defect of the agent; nothing was sent."


def check_counts(content: StatisticsAnswer, floor: int) -> None:
    """Events and empty cells are multiples of the floor."""
    told = [count for one in content.missing for count in (one.cells or 0, one.of)]
    if content.events is not None:
        told.append(content.events)
        demand(not is_small_cell(content.rows - content.events, floor), "few rows without an event")
    demand(all(count % floor == 0 for count in told), "a count that was not rounded")


def check_reference_terms(terms: ReferenceTerms, cells: CellCounts, floor: int) -> None:
    """No cell of theirs is small, by their own account and under this site's floor."""
    demand(terms.floor.item() >= floor, "reference terms made for a lower floor")
    check_reference(terms, cells.training_rows)


def check_evaluation(content: EvaluationAnswer, plan: StudyPlan, cells: CellCounts, floor: int) -> None:
    """Of a test part that is not small itself."""
    rows, events = cells.test.rows, content.test_events
    demand(content.test_rows in (None, rows), "another count than that of rows")
    if events is not None:
        demand(not is_small_cell(events, floor), "few events")
        demand(not is_small_cell(rows - events, floor), "few rows without an event")
    for one in content.calibration:
        demand(one.rows >= floor, "a bin of few rows")
        if plan.task.kind == "binary":
            found = round(one.observed)
            demand(not is_small_cell(found, floor), "a bin of few events")
            demand(not is_small_cell(one.rows - found, floor), "a bin of few rows without an event")
    by_column: dict[str, int] = {}
    for group in content.subgroups:
        scored = group.score is not None and group.score.value is not None
        demand(group.rows is not None or not scored, "a score of a hidden group")
        told = group.rows or 0
        demand(not is_small_cell(told, floor), "a group of few rows")
        by_column[group.column] = by_column.get(group.column, 0) + told
    for told in by_column.values():
        demand(not is_small_cell(rows - told, floor), "groups that leave few rows over")


def demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ModelError(f"the answer would give away {otherwise}", hint=DEFECT)
