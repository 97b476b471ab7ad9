"""The OpenAPI description of the local prediction service, made from the study plan."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, create_model
from pydantic.json_schema import models_json_schema

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
