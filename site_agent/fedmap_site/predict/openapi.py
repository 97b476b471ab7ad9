"""The local prediction service described, from the study plan: OpenAPI for programs, a page for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, create_model
from pydantic.json_schema import models_json_schema

from fedmap.study.plan.sections import Feature, FeatureBlock
from fedmap.web.pages import Pages
from fedmap_site.predict.rows import CLASS, LOG_HAZARD, ReadyModel
from fedmap_site.predict.service import MOST_ROWS, ROWS, SKIP, Form, columns_form, outputs_in_words

_JSON = "application/json"
Fields = dict[str, tuple[Any, Form]]  # name → (type, what pydantic's `Field` takes)


class NoPrediction(BaseModel):
    row: PositiveInt
    reason: str


class Problem(BaseModel):
    code: str
    message: str
    hint: str
    problems: list[str] = []


def openapi(ready: ReadyModel, software_version: str) -> Form:
    """OpenAPI 3.1."""
    problem = {"description": "Refused; why, and what to do.", "content": _content("Problem")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": ready.title,
            "version": software_version,
            "summary": f"Predictions of {ready.name}",
            "description": ready.intended_use,
        },
        "security": [{"token": []}],
        "paths": {
            "/v1/predict": {
                "post": {
                    "operationId": "predict",
                    "summary": f"Predictions for up to {MOST_ROWS:,} rows",
                    "requestBody": {"required": True, "content": _content("Request")},
                    "responses": {
                        "200": {
                            "description": "One prediction per row, in the rows' order.",
                            "content": _content("Answer"),
                        },
                        **dict.fromkeys(("401", "410", "413", "415", "422"), problem),
                    },
                }
            },
            "/v1/model": {
                "get": {
                    "operationId": "model",
                    "summary": "What the model is and which columns it needs",
                    "responses": {"200": {"description": "The description."}, "401": problem},
                }
            },
            "/healthz": {
                "get": {
                    "operationId": "healthz",
                    "summary": "The process runs",
                    "security": [],
                    "responses": {"200": {"description": "It does."}},
                }
            },
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(ready),
        },
    }


def _schemas(ready: ReadyModel) -> Form:
    words = outputs_in_words(ready)
    label = {CLASS: (Literal[ready.labels], {"description": words[CLASS]})} if ready.labels else {}
    numbers = {name: _number(name, words[name]) for name in ready.columns}
    row = _model("Row", {column["name"]: _cell(column) for column in columns_form(ready)})
    prediction = _model("Prediction", {"row": (PositiveInt, {}), **numbers, **label})
    reasons = "Rows that cannot be predicted get a reason instead of an error."
    rows: Fields = {ROWS: (list[row], {"min_length": 1, "max_length": MOST_ROWS})}  # type: ignore[valid-type]
    request = _model("Request", rows | {SKIP: (bool, {"default": False, "description": reasons})})
    told = {"model": str, "personal": bool, "rows": PositiveInt, "skipped": NonNegativeInt}
    lists = {"problems": list[str], "predictions": list[prediction | NoPrediction]}  # type: ignore[valid-type]
    answer = _model("Answer", {name: (kind, {}) for name, kind in (told | lists).items()})
    _, found = models_json_schema(
        [(model, "validation") for model in (request, answer, Problem)],
        ref_template="#/components/schemas/{model}",
    )
    schemas: Form = found["$defs"]
    return schemas


def _model(name: str, fields: Fields) -> Any:
    """Columns may have any name, so the fields have names of their own."""
    own: dict[str, Any] = {
        f"field_{at}": (kind, Field(**{"alias": alias, "title": alias, **told}))
        for at, (alias, (kind, told)) in enumerate(fields.items())
    }
    extra: Literal["forbid", "ignore"] = "forbid" if name == "Request" else "ignore"
    return create_model(name, __config__=ConfigDict(extra=extra), **own)


def _cell(column: Form) -> tuple[Any, Form]:
    """A category may be given as text or as a number; null is an empty cell."""
    if column["kind"] == "category":
        return str | float | bool | None, {"description": f"One of {', '.join(column['categories'])}."}
    told = {} if column["unit"] is None else {"description": f"In {column['unit']}."}
    low, high = column["range"] or (None, None)
    return Annotated[float, Field(ge=low, le=high)] | None, told


def _number(name: str, words: str) -> tuple[Any, Form]:
    limits = {} if name == LOG_HAZARD else {"ge": 0, "le": 1}
    return float, {"description": words, **limits}


def _content(name: str) -> Form:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


_PAGES = Pages("Predictions for this hospital’s own systems", Path(__file__).parent / "templates")
_FEW = 4  # columns of the example


def page(ready: ReadyModel) -> str:
    """HTML; its style sheet is /style.css."""
    columns = columns_form(ready)
    row = {column["name"]: _example(column) for column in columns[:_FEW]}
    return _PAGES.page(
        "service.html",
        model=ready,
        most_rows=f"{MOST_ROWS:,}",
        skip=SKIP,
        example=json.dumps({ROWS: [row]}, ensure_ascii=False),
        more_columns=len(columns) > _FEW,
        columns=[_in_words(feature) for feature in ready.plan.features],
        outputs=outputs_in_words(ready),
    )


def _example(column: Form) -> object:
    """A value of the right form from the plan, nobody's."""
    if column["kind"] == "category":
        return column["categories"][0]
    low, high = column["range"] or (0.0, 2.0)
    return float(f"{(low + high) / 2:.3g}")


def _in_words(feature: Feature) -> tuple[str, str, str, str]:
    """Name, unit, what is allowed, and what becomes of an empty cell."""
    name = getattr(feature, "name", "")
    allowed = "any number" if feature.range is None else f"{feature.range[0]:g} to {feature.range[1]:g}"
    if isinstance(feature, FeatureBlock):
        name = f"{feature.prefix}… ({feature.columns} columns, see openapi.json)"
    elif feature.kind == "category":
        allowed = ", ".join(feature.categories)
    missing = feature.missing
    return (
        name,
        feature.unit or "",
        allowed,
        (f"taken as {missing.fill}" if missing.action == "fill" else "not predicted"),
    )
