"""How many rows stand behind what a site would say. What of them may leave is the exit gate's to judge."""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.data.table.site_dataset import SiteDataset
from fedmap.scoring.disclosure import PartCounts, events, part_counts
from fedmap.study.plan.study_plan import StudyPlan


@dataclass(frozen=True)
class CellCounts:
    """Counts of one site's data under one plan."""

    training_rows: int  # with their validation share
    training_events: int | None  # None: the task has no such count
    validation: PartCounts
    test: PartCounts


def count_cells(plan: StudyPlan, dataset: SiteDataset) -> CellCounts:
    return CellCounts(
        training_rows=len(dataset.train) + len(dataset.validation),
        training_events=events(plan.task.kind, dataset.train, dataset.validation),
        validation=part_counts(plan.task.kind, dataset.validation),
        test=part_counts(plan.task.kind, dataset.test),
    )
