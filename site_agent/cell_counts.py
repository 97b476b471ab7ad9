"""How many rows stand behind what a site would say. The counts are judged here and never leave.

A part is small when its rows, or the rows of one class, or its events, are fewer than the floor and not none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.algorithm.examples import Examples
from common.data.site_dataset import SiteDataset
from common.disclosure import is_small_cell
from common.plan import StudyPlan
from site_agent.data_loader import events
from site_agent.policy import Floors


@dataclass(frozen=True)
class PartCounts:
    """Rows of one part, and the cells in it that a score could give away."""

    rows: int
    cells: tuple[int, ...]  # rows by class, or events

    def is_small(self, floor: int) -> bool:
        return self.rows < floor or any(is_small_cell(cell, floor) for cell in self.cells)


@dataclass(frozen=True)
class CellCounts:
    """Counts of one site's data under one plan."""

    training_rows: int  # with their validation share
    training_events: int | None  # None: the task has no such count
    validation: PartCounts
    test: PartCounts

    def reaches(self, floors: Floors) -> bool:
        """Whether the site has enough to take part at all."""
        few_events = self.training_events is not None and self.training_events < floors.min_events
        return self.training_rows >= max(floors.min_rows, floors.min_cell) and not few_events


def count_cells(plan: StudyPlan, dataset: SiteDataset) -> CellCounts:
    return CellCounts(
        training_rows=len(dataset.train) + len(dataset.validation),
        training_events=events(plan, dataset.train, dataset.validation),
        validation=_part(plan, dataset.validation),
        test=_part(plan, dataset.test),
    )


def _part(plan: StudyPlan, part: Examples) -> PartCounts:
    if plan.task.kind == "cox":
        found = events(plan, part)
        return PartCounts(len(part), (0 if found is None else found,))
    return PartCounts(len(part), tuple(int(n) for n in np.bincount(part.target.numpy())))
