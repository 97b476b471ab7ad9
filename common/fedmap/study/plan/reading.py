"""From TOML to a `StudyPlan`, with every fault of the plan in one `PlanError`.

Sections are read one by one, so that a fault in one does not hide those of another; a section with bad keys
is read again without them, so that what remains can still be checked for contradictions. Nothing is repaired:
any fault at all refuses the plan.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedmap.algorithm.settings import AggregationSettings, PriorSettings, TrainingSettings
from fedmap.errors import PlanError
from fedmap.process.problems import Fault, faults_of, path_of, unknown_key
from fedmap.study.plan.contradictions import Draft, contradictions
from fedmap.study.plan.sections import (
    DataSection,
    Feature,
    FeatureBlock,
    FeatureColumn,
    LimitsSection,
    ModelSection,
    RoundsSection,
    ScalingSection,
    SplitSection,
    StudySection,
    TaskSection,
)
from fedmap.study.plan.study_plan import StudyPlan

_Part = TypeVar("_Part")
_HINT = "Correct each line above in the plan file; docs and lab/fedmap_lab/plans show complete plans."


def load_plan(path: Path) -> StudyPlan:
    """Reads and checks a plan file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
        raise PlanError(
            str(path), (f"cannot be read: {reason}",), hint="Check the path of the plan."
        ) from error
    except UnicodeDecodeError as error:
        raise PlanError(
            str(path), ("is not UTF-8 text",), hint="Save the plan as a UTF-8 text file."
        ) from error
    return parse_plan(text, str(path))


def parse_plan(text: str, source: str) -> StudyPlan:
    """Reads and checks a plan; `source` names it in the error."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(
            source,
            (f"not valid TOML: {error}",),
            hint="Correct the line named above; nothing else was checked.",
        ) from error
    return read_plan(raw, source)


def read_plan(raw: dict[str, object], source: str) -> StudyPlan:
    """Checks a plan given as tables of keys and values."""
    reader = _Reader(raw)
    study = reader.section("study", StudySection)
    task = reader.section("task", TaskSection)
    data = reader.section("data", DataSection, DataSection())
    split = reader.section("split", SplitSection, SplitSection())
    features = reader.features()
    model = reader.section("model", ModelSection)
    training = reader.section("training", TrainingSettings, TrainingSettings())
    prior = reader.section("prior", PriorSettings, PriorSettings())
    aggregation = reader.section("aggregation", AggregationSettings, AggregationSettings())
    rounds = reader.section("rounds", RoundsSection, RoundsSection())
    limits = reader.section("limits", LimitsSection, LimitsSection())
    scaling = reader.section("scaling", ScalingSection, ScalingSection())
    reader.refuse_unread()

    draft = Draft(task, data, split, model, features, all_features_read=reader.all_features_read)
    faults = reader.faults + [fault for fault in contradictions(draft) if not reader.knows_of(fault.path)]
    # A part is None only where a fault says why; the tests for None tell the type checker so.
    if (
        faults
        or study is None
        or task is None
        or data is None
        or split is None
        or model is None
        or training is None
        or prior is None
        or aggregation is None
        or rounds is None
        or limits is None
        or scaling is None
    ):
        raise PlanError(source, tuple(str(fault) for fault in faults), hint=_HINT)
    return StudyPlan(
        study=study,
        task=task,
        features=tuple(feature for _, feature in features),
        model=model,
        data=data,
        split=split,
        training=training,
        prior=prior,
        aggregation=aggregation,
        rounds=rounds,
        limits=limits,
        scaling=scaling,
    )


class _Reader:
    """Reads part after part of the raw plan and gathers the faults."""

    def __init__(self, raw: dict[str, object]) -> None:
        self._raw = raw
        self._read: list[str] = []
        self.faults: list[Fault] = []
        self.all_features_read = False

    def section(self, name: str, kind: type[_Part], default: _Part | None = None) -> _Part | None:
        """One section; the default where the plan leaves it out, None where it cannot be read."""
        self._read.append(name)
        if name not in self._raw:
            if default is None:
                self.faults.append(Fault(name, f"the section [{name}] is missing"))
            return default
        return self._part(name, self._raw[name], kind)

    def features(self) -> tuple[tuple[int, Feature], ...]:
        """The features that can be read, with their positions."""
        self._read.append("features")
        entries = self._raw.get("features")
        if not isinstance(entries, list) or not entries:
            self.faults.append(Fault("features", "the plan needs at least one [[features]] entry"))
            return ()
        read: list[tuple[int, Feature]] = []
        for position, entry in enumerate(entries):
            feature = self._feature(f"features[{position}]", entry)
            if feature is not None:
                read.append((position, feature))
        self.all_features_read = len(read) == len(entries)
        return tuple(read)

    def knows_of(self, path: str) -> bool:
        """Whether a fault at this path, or inside it, is already reported."""
        return any(
            fault.path == path or fault.path.startswith((f"{path}.", f"{path}[")) for fault in self.faults
        )

    def refuse_unread(self) -> None:
        """Any other section is a mistake, most likely of spelling."""
        for name in self._raw:
            if name not in self._read:
                self.faults.append(Fault(name, unknown_key(name, self._read)))

    def _feature(self, path: str, entry: object) -> Feature | None:
        if isinstance(entry, dict) and ("name" in entry) == ("prefix" in entry):
            self.faults.append(
                Fault(path, "needs either a name (one column) or a prefix (a block of columns)")
            )
            return None
        if isinstance(entry, dict) and "prefix" in entry:
            return self._part(path, entry, FeatureBlock)
        return self._part(path, entry, FeatureColumn)

    def _part(self, path: str, raw: object, kind: type[_Part]) -> _Part | None:
        if not isinstance(raw, dict):
            self.faults.append(Fault(path, "must be a table of keys and values"))
            return None
        unusable = list(_unusable_values(raw, ()))
        self.faults += [Fault(path_of(path, keys), text) for keys, text in unusable]
        bad = {keys[0] for keys, _ in unusable}
        left = {key: value for key, value in raw.items() if key not in bad}
        try:
            return _validate(kind, left)
        except ValidationError as error:
            found = faults_of(error, path, _keys(kind))
            reported = {path_of(path, (key,)) for key in bad}
            self.faults += [fault for fault in found if fault.path not in reported]
            bad |= {str(detail["loc"][0]) for detail in error.errors(include_url=False, include_input=False)}
        try:
            return _validate(kind, {key: value for key, value in left.items() if key not in bad})
        except ValidationError:
            return None  # a required key is among the bad ones, and that is already reported


def _validate(kind: type[_Part], raw: dict[str, object]) -> _Part:
    """Checks types strictly: a number in quotes is not a number. JSON mode lets lists stand for tuples."""
    return TypeAdapter(kind).validate_json(json.dumps(raw), strict=True)


def _keys(kind: type[object]) -> tuple[str, ...]:
    if issubclass(kind, BaseModel):
        return tuple(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


def _unusable_values(
    value: object, keys: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What TOML can say and a plan cannot: dates, times, infinities and not-a-number."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _unusable_values(inner, (*keys, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _unusable_values(inner, (*keys, position))
    elif isinstance(value, datetime.date | datetime.time):
        yield keys, "must not be a date or a time; put it in quotes if a text is meant"
    elif isinstance(value, float) and not math.isfinite(value):
        yield keys, "must be a finite number"
