"""From a site's file to a checked `SiteDataset`: the whole way, with every problem of the site in one error.

Steps: (1) read the plan's columns, (2) drop rows by rule, (3) check and encode features and outcome, (4)
divide by patient, (5) describe what is thin. Nothing is repaired and nothing is dropped without a record.
Raw eICU tables become one wide frame elsewhere and enter at `load_frame`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fedmap.algorithm.examples import Examples
from fedmap.data.features import count_missing, encode_features, rows_to_exclude
from fedmap.data.outcome import Outcome, nonpositive_times, outcome_notes, read_outcome
from fedmap.data.rules import RuledRows, drop_rows, format_of
from fedmap.data.split import (
    FixedTest,
    Labels,
    Parts,
    Patients,
    Rows,
    all_for_testing,
    draw_parts,
    one_patient_per_row,
    read_fixed_test,
    read_patients,
)
from fedmap.data.table.file import Table, WantedColumns, match_columns, read_table
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import DataError
from fedmap.study.plan.sections import FeatureBlock, FeatureColumn
from fedmap.study.plan.study_plan import StudyPlan

_HINT = "Correct the site's file, or the plan if the file is right; then load it again. Nothing was trained."


def load_site(plan: StudyPlan, site: str, path: Path, tier: int) -> SiteDataset:
    """Loads one site's CSV or Parquet file. At tier 3 all rows are for testing."""
    return _load(plan, site, read_table(site, path, wanted_columns(plan, tier)), tier)


def load_frame(plan: StudyPlan, site: str, frame: pd.DataFrame, tier: int) -> SiteDataset:
    """Loads a site whose wide table is already in memory, under the same checks."""
    present, problems = match_columns((str(name) for name in frame.columns), wanted_columns(plan, tier))
    return _load(plan, site, Table(frame[present].reset_index(drop=True), problems), tier)


def wanted_columns(plan: StudyPlan, tier: int) -> WantedColumns:
    """The columns the plan needs of a site's file."""
    task, data = plan.task, plan.data
    single = [feature for feature in plan.features if isinstance(feature, FeatureColumn)]
    fixed_split = plan.split.column if tier != 3 else None
    rule_columns = format_of(data.format).columns
    roles = (task.label, task.time, task.event, data.patient, fixed_split, *rule_columns)
    text = [feature.name for feature in single if feature.kind == "category"]
    text += [name for name in (data.patient, fixed_split) if name is not None]
    if task.label is not None and task.positive is None:
        text.append(task.label)
    return WantedColumns(
        names=tuple(
            dict.fromkeys([*(feature.name for feature in single), *(name for name in roles if name)])
        ),
        text=frozenset(text),
        prefixes=tuple((f.prefix, f.columns) for f in plan.features if isinstance(f, FeatureBlock)),
    )


def _load(plan: StudyPlan, site: str, table: Table, tier: int) -> SiteDataset:
    by_shape = format_of(plan.data.format).applied(table.frame, plan.task)
    missing = count_missing(by_shape.frame, plan.features)
    ruled = _apply_plan(plan, by_shape)
    frame = ruled.frame
    features = encode_features(frame, plan.features)
    outcome = read_outcome(frame, plan.task)
    patients = _patients(plan, frame)
    fixed = _fixed_test(plan, frame, patients.numbers, tier)
    problems = [*table.problems, *ruled.problems, *features.problems, *outcome.problems, *patients.problems]
    problems += [*(fixed.problems if fixed else ()), *_too_few(plan, ruled, fixed, tier)]
    if problems:
        raise DataError(site, tuple(problems), hint=_HINT)

    if tier == 3:
        parts = all_for_testing(len(frame))
    else:
        parts = draw_parts(site, plan.split, patients.numbers, outcome.stratum, fixed)
    training_rows = len(parts.train) + len(parts.validation)
    if tier != 3 and training_rows < plan.limits.min_rows:
        raise DataError(site, (_few_rows(training_rows, plan.limits.min_rows),), hint=_HINT)
    values = torch.from_numpy(features.values)
    thin = outcome_notes(plan.task, plan.limits, outcome, parts.train, test_only=tier == 3)
    return SiteDataset(
        site=site,
        layout=features.layout,
        train=_examples(values, outcome, parts.train),
        validation=_examples(values, outcome, parts.validation),
        test=_examples(values, outcome, parts.test),
        exclusions=ruled.exclusions,
        notes=(*features.notes, *thin, *_part_notes(plan, outcome, parts, tier)),
        missing=missing,
    )


def _apply_plan(plan: StudyPlan, by_shape: RuledRows) -> RuledRows:
    """After the rules of the file's shape, those that the plan itself states."""
    rules = rows_to_exclude(by_shape.frame, plan.features)
    if plan.data.exclude_nonpositive_time:
        rules = (*nonpositive_times(by_shape.frame, plan.task), *rules)
    by_plan = drop_rows(by_shape.frame, rules)
    return RuledRows(by_plan.frame, by_shape.exclusions + by_plan.exclusions, by_shape.problems)


def _patients(plan: StudyPlan, frame: pd.DataFrame) -> Patients:
    name = plan.data.patient
    if name is None or name not in frame:
        return one_patient_per_row(len(frame))
    return read_patients(frame[name], name, repeated=plan.data.repeated_patients == "allow")


def _fixed_test(plan: StudyPlan, frame: pd.DataFrame, patients: Labels, tier: int) -> FixedTest | None:
    column = plan.split.column
    if tier == 3 or column is None or column not in frame:
        return None
    return read_fixed_test(frame[column], plan.split, patients)


def _too_few(plan: StudyPlan, ruled: RuledRows, fixed: FixedTest | None, tier: int) -> tuple[str, ...]:
    """Whether the rows cannot do, however they are divided."""
    rows = len(ruled.frame)
    if rows == 0:
        dropped = "; ".join(f"{exclusion.rows} dropped: {exclusion.reason}" for exclusion in ruled.exclusions)
        return (f"no row is left ({dropped})" if dropped else "the file has no rows",)
    for_training = rows if fixed is None else int((~fixed.rows).sum())
    if tier != 3 and for_training < plan.limits.min_rows:
        return (_few_rows(for_training, plan.limits.min_rows),)
    return ()


def _few_rows(rows: int, least: int) -> str:
    return f"{rows} rows for training, the plan wants at least {least} (limits.min_rows)"


def _examples(features: torch.Tensor, outcome: Outcome, rows: Rows) -> Examples:
    return Examples(
        features=features[torch.from_numpy(rows)],
        target=torch.from_numpy(outcome.target[rows]),
        event=None if outcome.event is None else torch.from_numpy(outcome.event[rows]),
    )


def _part_notes(plan: StudyPlan, outcome: Outcome, parts: Parts, tier: int) -> tuple[str, ...]:
    """Parts that cannot serve their purpose: early stopping, thresholds, scores."""
    notes: list[str] = []
    checked = (
        [("test", parts.test)] if tier == 3 else [("validation", parts.validation), ("test", parts.test)]
    )
    for name, rows in checked:
        if len(rows) == 0:
            notes.append(f"the {name} part is empty")
        elif plan.task.kind == "cox":
            if outcome.stratum.any() and not outcome.stratum[rows].any():
                notes.append(f"the {name} part has no events")
        elif len(np.unique(outcome.stratum)) > 1 and len(np.unique(outcome.stratum[rows])) == 1:
            notes.append(f"the {name} part has one class only")
    return tuple(notes)
