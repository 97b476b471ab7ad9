"""The door: the only way in which patient rows reach the agent, under the site's policy.

Steps: (1) the policy allows the study, (2) the file is the one that the study was begun with, (3) it is
loaded and checked against the plan, (4) it reaches the floors. A file that changes in mid-study is refused:
rows that moved from test to training would make every score worthless. Scaling needs the federation's
statistics and is the site's step's.

`check_data` asks whether a file would do for a plan: nothing is trained, sent or remembered. Its report is
for the site itself: problems are counted exactly, so that they can be found and mended; sizes below the
floor are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import DataError
from fedmap.files.digests import file_sha256
from fedmap.files.durable import storage_error
from fedmap.scoring.disclosure import events, is_small_cell
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.terms import StudyTerms
from fedmap_site.policy import Floors, SitePolicy, check_terms, floors_of
from fedmap_site.state.studies import DataRecord, SiteState

_T1 = 1


@dataclass(frozen=True)
class _Loaded:
    key: tuple[str, Path, int, int, int, Floors]
    digest: str
    dataset: SiteDataset


class DataLoader:
    """Loads the site's file of a study; keeps the newest one in memory while the file stays the same."""

    def __init__(self, site: str, state: SiteState, policy: SitePolicy) -> None:
        self._site = site
        self._state = state
        self._policy = policy
        self._kept: _Loaded | None = None

    def load(self, terms: StudyTerms, path: Path | None) -> SiteDataset:
        """The checked rows, not scaled. `DataError` lists every problem; it is for the site's eyes only."""
        check_terms(self._policy, terms)  # (1)
        if path is None:
            raise DataError(
                self._site,
                (f"no file is configured for the study {terms.study}",),
                hint="Name one in the agent's configuration: [data] file, or files by study.",
            )
        floors = floors_of(terms.plan, self._policy)
        before = self._key(terms, path, floors)
        if self._kept is None or self._kept.key != before:
            digest = file_sha256(path)
            self._refuse_change(terms.study, digest)  # (2)
            dataset = load_site(terms.plan, self._site, path, _T1)  # (3)
            if self._key(terms, path, floors) != before:
                raise self._changed("changed while it was being read")
            self._kept = _Loaded(before, digest, dataset)
        check_dataset(terms.plan, self._kept.dataset, floors)  # (4)
        if self._state.data_record(terms.study) is None:
            self._state.remember_data(terms.study, DataRecord(digest=self._kept.digest, name=path.name))
        else:
            self._refuse_change(terms.study, self._kept.digest)
        return self._kept.dataset

    def _key(self, terms: StudyTerms, path: Path, floors: Floors) -> tuple[str, Path, int, int, int, Floors]:
        """Changes whenever the rows could have changed."""
        try:
            found = path.stat()
        except OSError as error:
            raise DataError(
                self._site,
                (f"the file {path.name} cannot be opened: {(error.strerror or 'input error').lower()}",),
                hint=f"{storage_error(error, path).hint} The key is [data] of the agent's configuration.",
            ) from None
        return terms.digest, path, found.st_ino, found.st_size, found.st_mtime_ns, floors

    def _refuse_change(self, study: str, digest: str) -> None:
        record = self._state.data_record(study)
        if record is not None and record.digest != digest:
            raise self._changed("is not the one that the study was begun with")

    def _changed(self, how: str) -> DataError:
        return DataError(
            self._site,
            (f"the data file {how}",),
            hint="Put the file back as it was when the study began. To use new data, leave the study and ask "
            "the operator for a new one.",
        )


def check_dataset(plan: StudyPlan, dataset: SiteDataset, floors: Floors) -> None:
    """Whether a loaded site may take part; the counts themselves are not spelt out."""
    problems = []
    if len(dataset.train) + len(dataset.validation) < floors.rows_to_train:
        problems.append(f"fewer than {floors.rows_to_train} rows for training")
    found = events(plan.task.kind, dataset.train, dataset.validation)
    if found is not None and found < floors.min_events:
        words = "events" if plan.task.kind == "cox" else "positive rows"
        problems.append(f"fewer than {floors.min_events} {words} for training")
    inputs, layout = planned_inputs(plan), dataset.layout
    if (len(layout.names), layout.scaled, layout.groups) != (inputs.count, inputs.scaled, inputs.groups):
        problems.append("the model's inputs are not those that the plan describes")
    if problems:
        raise DataError(
            dataset.site,
            tuple(problems),
            hint="The floors are the stricter of the study's limits and the policy; wait for more data.",
        )


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
        found = events(plan.task.kind, part)
        if found is not None:
            lines.append(Line(f"{name} {word}", shown_count(found, floors)))
    return tuple(lines)


def shown_count(count: int, floors: Floors) -> str:
    """A count, or that it is below the floor."""
    return f"fewer than {floors.min_cell}" if is_small_cell(count, floors.min_cell) else str(count)
