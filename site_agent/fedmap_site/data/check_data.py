"""Would the site's file do for a plan? All problems at once, counts of what was found, and never a row.

For `fedmap-site check-data`: nothing is trained, sent or remembered. The report is for the site itself: its
problems are counted exactly, so that they can be found and mended. Sizes below the floor are shown as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import DataError
from fedmap.scoring.disclosure import events, is_small_cell
from fedmap.study.plan import StudyPlan
from fedmap_site.data.loader import check_dataset
from fedmap_site.policy import Floors, SitePolicy, floors_of

_T1 = 1


@dataclass(frozen=True)
class Line:
    """One thing that was counted."""

    name: str
    value: str


@dataclass(frozen=True)
class DataReport:
    """What a site can know about its file before it joins a study."""

    study: str
    usable: bool
    problems: tuple[str, ...]
    counts: tuple[Line, ...]
    left_out: tuple[Line, ...]  # reason → rows
    notes: tuple[str, ...]


def check_data(plan: StudyPlan, site: str, path: Path, policy: SitePolicy) -> DataReport:
    """Load the file as a round would, under plan and policy."""
    floors = floors_of(plan, policy)
    try:
        dataset = load_site(plan, site, path, _T1)
    except DataError as error:
        return DataReport(plan.study.name, False, error.problems, (), (), ())
    problems: tuple[str, ...] = ()
    try:
        check_dataset(plan, dataset, floors)
    except DataError as error:
        problems = error.problems
    return DataReport(
        study=plan.study.name,
        usable=not problems,
        problems=problems,
        counts=_counts(plan, dataset, floors),
        left_out=tuple(Line(e.reason, shown_count(e.rows, floors)) for e in dataset.exclusions),
        notes=dataset.notes,
    )


def _counts(plan: StudyPlan, dataset: SiteDataset, floors: Floors) -> tuple[Line, ...]:
    lines = [Line("inputs of the model", str(len(dataset.layout.names)))]
    word = "events" if plan.task.kind == "cox" else "positive rows"
    for name, part in (
        ("training", dataset.train),
        ("validation", dataset.validation),
        ("test", dataset.test),
    ):
        lines.append(Line(f"{name} rows", shown_count(len(part), floors)))
        found = events(plan, part)
        if found is not None:
            lines.append(Line(f"{name} {word}", shown_count(found, floors)))
    return tuple(lines)


def shown_count(count: int, floors: Floors) -> str:
    """A count, or that it is below the floor."""
    return f"fewer than {floors.min_cell}" if is_small_cell(count, floors.min_cell) else str(count)
