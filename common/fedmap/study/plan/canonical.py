"""A plan in its canonical form (JSON values, defaults spelt out), and back.

The canonical form is what sites approve by digest. Reading it back is strict: what it gives must have the
very same canonical form again, so nothing in it can be overlooked or repaired.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedmap.errors import PlanError
from fedmap.study.plan.reading import read_plan
from fedmap.study.plan.study_plan import StudyPlan

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_NUMBER_OPTIONS: Mapping[str, Json] = {"range": None, "unit": None, "transform": "none", "scale": True}
_HINT = "Ask the operator to create the study again with this version of the software."


def canonical_form(plan: StudyPlan) -> dict[str, Json]:
    """Every field, also those left at their defaults, but for what older agents do not know (`StudyPlan`)."""
    form: dict[str, Json] = plan.model_dump(mode="json")
    return form


def plan_of(form: Mapping[str, Json], source: str) -> StudyPlan:
    """The plan of a canonical form. A form that says anything else, more or less is a `PlanError`."""
    plan = read_plan(_as_written(form), source)
    if canonical_form(plan) != form:
        raise PlanError(source, ("the plan is not in its canonical form",), hint=_HINT)
    return plan


def _as_written(form: Mapping[str, Json]) -> dict[str, object]:
    """As a person would write it: a plan may not name an option that has no meaning, even at its default."""
    written: dict[str, object] = dict(form)
    split, model, features = form.get("split"), form.get("model"), form.get("features")
    if isinstance(split, dict) and split.get("column") is not None:
        written["split"] = {key: value for key, value in split.items() if key != "test"}
    if isinstance(model, dict) and model.get("name") != "mlp":
        meant = ("name",) if model.get("name") == "linear" else ("name", "dropout")
        known = ("name", "dropout", "hidden", "batch_norm")
        written["model"] = {key: value for key, value in model.items() if key in meant or key not in known}
    if isinstance(features, list):
        written["features"] = [_feature_as_written(f) if isinstance(f, dict) else f for f in features]
    return written


def _feature_as_written(feature: Mapping[str, Json]) -> dict[str, object]:
    written: dict[str, object] = dict(feature)
    if feature.get("kind") == "category":
        written = {
            key: value
            for key, value in feature.items()
            if key not in _NUMBER_OPTIONS or value != _NUMBER_OPTIONS[key]
        }
    match feature.get("missing"):
        case {"action": "refuse" | "exclude" as action, "fill": None, **rest} if not rest:
            written["missing"] = action
        case {"action": "fill", "fill": str() | int() | float() as fill, **rest} if not rest:
            written["missing"] = {"fill": fill}
    return written
