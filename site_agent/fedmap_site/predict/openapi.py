"""The OpenAPI description of the local prediction service, made from the study plan."""

from __future__ import annotations

from fedmap_site.predict.rows import CLASS, LOG_HAZARD, RISK, ReadyModel
from fedmap_site.predict.service import MOST_ROWS, ROWS, SKIP, Form, columns_form

_JSON = "application/json"


def openapi(ready: ReadyModel, software_version: str) -> Form:
    """OpenAPI 3.1."""
    problem = {
        "description": "Refused; why, and what to do.",
        "content": {_JSON: {"schema": _ref("Problem")}},
    }
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
                    "requestBody": {"required": True, "content": {_JSON: {"schema": _ref("Request")}}},
                    "responses": {
                        "200": {
                            "description": "One prediction per row, in the rows' order.",
                            "content": {_JSON: {"schema": _ref("Answer")}},
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
    columns = columns_form(ready)
    row = {"type": "integer", "minimum": 1}
    numbers = {name: _number(name, ready) for name in ready.columns}
    label = {CLASS: {"type": "string", "enum": list(ready.labels)}} if ready.labels else {}
    return {
        "Request": {
            "type": "object",
            "required": [ROWS],
            "additionalProperties": False,
            "properties": {
                ROWS: {"type": "array", "minItems": 1, "maxItems": MOST_ROWS, "items": _ref("Row")},
                SKIP: {
                    "type": "boolean",
                    "default": False,
                    "description": "Rows that cannot be predicted get a reason instead of an error.",
                },
            },
        },
        "Row": {
            "type": "object",
            "required": [column["name"] for column in columns],
            "properties": {column["name"]: _column(column) for column in columns},
        },
        "Answer": {
            "type": "object",
            "required": ["model", "personal", "rows", "skipped", "problems", "predictions"],
            "properties": {
                "model": {"type": "string"},
                "personal": {"type": "boolean"},
                "rows": row,
                "skipped": {"type": "integer", "minimum": 0},
                "problems": {"type": "array", "items": {"type": "string"}},
                "predictions": {
                    "type": "array",
                    "items": {"oneOf": [_ref("Prediction"), _ref("NoPrediction")]},
                },
            },
        },
        "Prediction": {
            "type": "object",
            "required": ["row", *numbers, *label],
            "properties": {"row": row, **numbers, **label},
        },
        "NoPrediction": {
            "type": "object",
            "required": ["row", "reason"],
            "properties": {"row": row, "reason": {"type": "string"}},
        },
        "Problem": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "hint": {"type": "string"},
                "problems": {"type": "array", "items": {"type": "string"}},
            },
        },
    }


def _column(column: Form) -> Form:
    """A category may be given as text or as a number; null is an empty cell."""
    if column["kind"] == "category":
        return {
            "type": ["string", "number", "boolean", "null"],
            "description": f"One of {', '.join(column['categories'])}.",
        }
    schema: Form = {"type": ["number", "null"]}
    if column["range"] is not None:
        schema |= {"minimum": column["range"][0], "maximum": column["range"][1]}
    if column["unit"] is not None:
        schema["description"] = f"In {column['unit']}."
    return schema


def _number(name: str, ready: ReadyModel) -> Form:
    if name == LOG_HAZARD:
        return {"type": "number", "description": "The model's own score; higher is riskier."}
    told = "Probability of the positive class."
    if name == RISK:
        told = f"Risk of the event within {ready.plan.task.horizon:g} {ready.plan.task.time_unit}."
    elif ready.plan.task.kind == "multiclass":
        told = "Probability of this class."
    return {"type": "number", "minimum": 0, "maximum": 1, "description": told}


def _ref(name: str) -> Form:
    return {"$ref": f"#/components/schemas/{name}"}
