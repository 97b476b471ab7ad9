"""What the parts of a plan must not say together.

Each check looks at a `Draft`, which holds the sections that could be read: where one could not, the checks
that need it are left out and the rest still speak, so that a plan's faults come out at once. Single fields
and their bounds are checked in `sections`. An outcome or an identifier among the inputs is the worst fault a
plan can have: the model would look perfect and know nothing. It is caught here, also when it hides in a
block of columns behind a prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedmap.metrics.names import primary_metric_names
from fedmap.outcomes import OutcomeKind
from fedmap.process.problems import Fault
from fedmap.study.plan.sections import (
    DataSection,
    Feature,
    FeatureBlock,
    FeatureColumn,
    ModelSection,
    SplitSection,
    TaskSection,
    canonical_text,
)

CPRD_FOLLOW_UP_YEARS = 10.0
"""CPRD-shaped files are censored here, so a later horizon has no data behind it."""

_MODEL_TASKS: dict[str, tuple[OutcomeKind, ...]] = {
    "cprd_survival": ("cox",),
    "interval_iron": ("binary",),
    "eicu_mortality": ("binary",),
}
_FORMAT_TASKS: dict[str, tuple[OutcomeKind, ...]] = {"cprd": ("cox",), "interval": ("binary",)}
_TOWERS = ("drugs", "diagnoses", "physiology")


@dataclass(frozen=True)
class Draft:
    """The parts of a plan that could be read; None where one could not."""

    task: TaskSection | None
    data: DataSection | None
    split: SplitSection | None
    model: ModelSection | None
    features: tuple[tuple[int, Feature], ...]
    """With their positions in the plan."""
    all_features_read: bool


def contradictions(draft: Draft) -> list[Fault]:
    """Every contradiction among the parts that could be read."""
    faults: list[Fault] = []
    if draft.task is not None:
        faults += _task_faults(draft.task)
    if draft.task is not None and draft.data is not None:
        faults += _data_faults(draft.data, draft.task)
    if draft.split is not None:
        faults += _split_faults(draft.split)
    if draft.model is not None:
        faults += _model_option_faults(draft.model)
        if draft.task is not None:
            faults += _model_task_faults(draft.model, draft.task)
        if draft.all_features_read:
            faults += _tower_faults(draft.model, draft.features)
    for position, feature in draft.features:
        faults += feature_faults(f"features[{position}]", feature)
    faults += overlap_faults(draft.features, _roles(draft))
    return list(dict.fromkeys(faults))


def _roles(draft: Draft) -> list[tuple[str, str]]:
    """(path in the plan, column) for each column that is not an input."""
    columns: list[tuple[str, str | None]] = []
    if draft.task is not None:
        columns += [("task.label", draft.task.label)]
        columns += [("task.time", draft.task.time), ("task.event", draft.task.event)]
    if draft.data is not None:
        columns += [("data.patient", draft.data.patient)]
    if draft.split is not None:
        columns += [("split.column", draft.split.column)]
    return [(path, column) for path, column in columns if column is not None]


def _task_faults(task: TaskSection) -> Iterator[Fault]:
    allowed = primary_metric_names(task.kind)
    if task.metric not in allowed:
        yield Fault(
            "task.metric", f"cannot rank models of a {task.kind} task; one of {', '.join(allowed)} can"
        )
    if task.kind == "cox":
        yield from _cox_faults(task)
    else:
        yield from _class_faults(task)
    if task.kind != "binary":
        for key in ("positive", "threshold"):
            if getattr(task, key) is not None:
                yield Fault(f"task.{key}", f"belongs to a binary task, and this one is {task.kind}")
    yield from _threshold_faults(task)


def _cox_faults(task: TaskSection) -> Iterator[Fault]:
    for key in ("time", "event", "time_unit", "horizon"):
        if getattr(task, key) is None:
            yield Fault(f"task.{key}", "is missing, and a cox task needs it")
    if task.label is not None:
        yield Fault("task.label", "a cox task has no label; its outcome is time and event")
    if task.classes:
        yield Fault("task.classes", "a cox task has no classes; its outcome is time and event")
    increasing = all(early < late for early, late in zip(task.grid, task.grid[1:], strict=False))
    if not increasing:
        yield Fault("task.grid", "must increase from time to time")
    if task.horizon is not None and (not task.grid or task.grid[-1] != task.horizon):
        yield Fault("task.grid", f"must end at the horizon, {task.horizon:g}")


def _class_faults(task: TaskSection) -> Iterator[Fault]:
    if task.label is None:
        yield Fault("task.label", f"is missing, and a {task.kind} task needs it")
    for key in ("time", "event", "time_unit", "horizon", "grid"):
        if getattr(task, key):
            yield Fault(f"task.{key}", f"belongs to a cox task, and this one is {task.kind}")
    repeated = duplicates(canonical_text(name) for name in task.classes)
    if repeated:
        yield Fault("task.classes", "names a class twice (numbers are compared as numbers)")
    if task.kind == "multiclass":
        if len(task.classes) < 2:
            yield Fault("task.classes", "a multiclass task needs at least two classes")
        return
    if task.classes and len(task.classes) != 2:
        yield Fault("task.classes", "a binary task has exactly two classes")
    if task.positive is None:
        if not task.classes:
            yield Fault("task", "a binary task needs `classes` or `positive`")
        return
    if task.classes:
        yield Fault("task.positive", "give either positive or classes, not both")
    if (task.positive.above is None) == (task.positive.below is None):
        yield Fault("task.positive", "needs exactly one of above and below")


def _threshold_faults(task: TaskSection) -> Iterator[Fault]:
    threshold = task.threshold
    if threshold is None:
        return
    finds_its_own = threshold.rule in ("youden", "prevalence")
    if finds_its_own and threshold.value is not None:
        yield Fault("task.threshold.value", f"the {threshold.rule} rule finds its own value")
    if not finds_its_own and threshold.value is None:
        yield Fault("task.threshold.value", f"is missing, and the rule {threshold.rule} needs it")


def _data_faults(data: DataSection, task: TaskSection) -> Iterator[Fault]:
    kinds = _FORMAT_TASKS.get(data.format)
    if kinds is not None and task.kind not in kinds:
        yield Fault(
            "data.format", f"{data.format} files hold a {kinds[0]} outcome, and the task is {task.kind}"
        )
    if data.format in ("cprd", "eicu") and data.patient is None:
        yield Fault("data.patient", f"is missing: {data.format} files hold several rows of one patient")
    if data.repeated_patients == "allow" and data.patient is None:
        yield Fault("data.patient", "is missing, and repeated patients can only be kept together by it")
    if data.exclude_nonpositive_time and (task.kind != "cox" or data.format != "table"):
        yield Fault("data.exclude_nonpositive_time", "belongs to a cox task on files of format table")
    if data.format == "cprd" and task.kind == "cox":
        if task.time_unit not in (None, "years"):
            yield Fault("task.time_unit", "cprd files count follow-up in years")
        elif task.horizon is not None and task.horizon > CPRD_FOLLOW_UP_YEARS:
            yield Fault("task.horizon", f"cprd follow-up is censored at {CPRD_FOLLOW_UP_YEARS:g} years")


def _split_faults(split: SplitSection) -> Iterator[Fault]:
    if split.column is None:
        for key in ("train_value", "test_value"):
            if getattr(split, key) is not None:
                yield Fault(f"split.{key}", "has no meaning without split.column")
        return
    if "test" in split.model_fields_set:
        yield Fault("split.test", "the test part is already given by split.column")
    for key in ("train_value", "test_value"):
        if getattr(split, key) is None:
            yield Fault(f"split.{key}", "is missing, and split.column needs it")
    if split.train_value is None or split.test_value is None:
        return
    if canonical_text(split.train_value) == canonical_text(split.test_value):
        yield Fault("split.test_value", "is the same as train_value")


def _model_option_faults(model: ModelSection) -> Iterator[Fault]:
    own = {"name"} if model.name == "linear" else {"name", "dropout"}
    if model.name == "mlp":
        own |= {"hidden", "batch_norm"}
    for key in sorted(model.model_fields_set - own):
        yield Fault(f"model.{key}", f"is not an option of {model.name}")


def _model_task_faults(model: ModelSection, task: TaskSection) -> Iterator[Fault]:
    kinds = _MODEL_TASKS.get(model.name)
    if kinds is not None and task.kind not in kinds:
        yield Fault(
            "model.name", f"{model.name} is a network for a {kinds[0]} task, and the task is {task.kind}"
        )


def _tower_faults(model: ModelSection, features: tuple[tuple[int, Feature], ...]) -> Iterator[Fault]:
    if model.name != "eicu_mortality":
        return
    present = {feature.group for _, feature in features}
    for tower in _TOWERS:
        if tower not in present:
            yield Fault("features", f"eicu_mortality needs features of the group {tower}")
    for position, feature in features:
        if feature.group not in _TOWERS:
            yield Fault(f"features[{position}].group", f"eicu_mortality knows only {', '.join(_TOWERS)}")


_NUMBER_ONLY = ("range", "unit", "transform", "scale")


def duplicates(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, in order of first appearance."""
    return [name for name, count in Counter(names).items() if count > 1]


def feature_faults(path: str, feature: Feature) -> Iterator[Fault]:
    """Contradictions inside one entry of the features."""
    if isinstance(feature, FeatureColumn) and feature.kind == "category":
        yield from _category_faults(path, feature)
        return
    if isinstance(feature, FeatureColumn) and feature.categories:
        yield Fault(f"{path}.categories", "belongs to a category, and this is a number")
    if feature.range is not None:
        yield from _range_faults(path, feature, *feature.range)
    if isinstance(feature.missing.fill, str):
        yield Fault(f"{path}.missing", "the fill of a number must be a number")


def _range_faults(path: str, feature: Feature, low: float, high: float) -> Iterator[Fault]:
    if low >= high:
        yield Fault(f"{path}.range", "the lower end must be below the upper end")
        return
    if feature.transform == "log1p" and low <= -1:
        yield Fault(f"{path}.range", "log1p is not defined at -1 and below")
    fill = feature.missing.fill
    if isinstance(fill, float) and not low <= fill <= high:
        yield Fault(f"{path}.missing", "the fill lies outside the range")


def _category_faults(path: str, feature: FeatureColumn) -> Iterator[Fault]:
    known = [canonical_text(category) for category in feature.categories]
    if len(known) < 2:
        yield Fault(f"{path}.categories", "a category needs at least two categories")
    if duplicates(known):
        yield Fault(f"{path}.categories", "names a category twice (numbers are compared as numbers)")
    for key in _NUMBER_ONLY:
        if key in feature.model_fields_set:
            yield Fault(f"{path}.{key}", "belongs to a number, and this is a category")
    if feature.missing.fill is not None and canonical_text(feature.missing.fill) not in known:
        yield Fault(f"{path}.missing", "the fill is not one of the categories")


def overlap_faults(
    features: tuple[tuple[int, Feature], ...], roles: list[tuple[str, str]]
) -> Iterator[Fault]:
    """Columns used twice: two roles, two features, or (a leak) a role and a feature."""
    for position, (path, column) in enumerate(roles):
        for other, used in roles[:position]:
            if used == column:
                yield Fault(path, f"is the same column as {other}")
    for path, column in roles:
        for index, feature in features:
            if _covers(feature, column):
                yield Fault(
                    _where(index, feature), f"takes in the column of {path}, which must not be an input"
                )
    for position, (index, feature) in enumerate(features):
        for earlier, other_feature in features[:position]:
            if _overlap(feature, other_feature):
                yield Fault(_where(index, feature), f"takes in a column of features[{earlier}] again")


def _where(index: int, feature: Feature) -> str:
    return f"features[{index}].{'prefix' if isinstance(feature, FeatureBlock) else 'name'}"


def _covers(feature: Feature, column: str) -> bool:
    if isinstance(feature, FeatureBlock):
        return column.startswith(feature.prefix)
    return column == feature.name


def _overlap(one: Feature, other: Feature) -> bool:
    if isinstance(one, FeatureColumn):
        return _covers(other, one.name)
    if isinstance(other, FeatureColumn):
        return _covers(one, other.name)
    return one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)
