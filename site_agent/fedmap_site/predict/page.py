"""The prediction service described for people: one page, no script, nothing from anywhere else.

The same facts as `/openapi.json`, for who writes the hospital's side of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape

from fedmap.study.plan import FeatureBlock
from fedmap.study.plan.features import Feature
from fedmap_site.predict.rows import CLASS, LOG_HAZARD, RISK, ReadyModel
from fedmap_site.predict.service import MOST_ROWS, ROWS, SKIP, Form, columns_form

_FEW = 4  # columns of the example
_STATUS = (
    ("401", "The token is missing or wrong."),
    ("410", "The model has expired."),
    ("413", f"More than {MOST_ROWS:,} rows, or too many bytes."),
    ("415", "The content type is not application/json."),
    ("422", "The rows do not fit: columns and counts are named, values never."),
)


def page(ready: ReadyModel) -> str:
    """HTML; its style sheet is /style.css."""
    title = escape(ready.title)
    kind = "This site's own fine-tuned model" if ready.personal else "The federation's shared model"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<title>{title}</title><link rel="stylesheet" href="/style.css"></head><body>',
        '<header class="top"><p>Predictions for this hospital’s own systems</p></header><main>',
        f"<h1>{title}</h1>",
        f'<p class="lead">{kind}, <code>{escape(ready.name)}</code>. JSON in, JSON out.</p>',
        f'<p class="alert">{escape(ready.intended_use)}</p>' if ready.intended_use else "",
        f'<p class="alert">Note: {escape(ready.note)}.</p>' if ready.note else "",
        *_asking(ready),
        *_columns(ready),
        *_answer(ready),
        *_refusals(),
        "</main><footer><p>For programs: <a href='/openapi.json'>openapi.json</a>. Rows are neither kept nor "
        "written to a log.</p></footer></body></html>",
    ]
    return "\n".join(part for part in parts if part)


def _asking(ready: ReadyModel) -> Iterable[str]:
    row = dict(list(_example(ready).items())[:_FEW])
    body = json.dumps({ROWS: [row]}, ensure_ascii=False)
    command = (
        "curl --cacert ca.pem https://HOST:PORT/v1/predict \\\n"
        '  -H "Authorization: Bearer $(cat token)" -H "Content-Type: application/json" \\\n'
        f"  -d '{body}'"
    )
    yield "<h2>Ask for predictions</h2>"
    yield f"<p><code>POST /v1/predict</code>, up to {MOST_ROWS:,} rows at once.</p>"
    yield f"<pre><code>{escape(command)}</code></pre>"
    if len(columns_form(ready)) > _FEW:
        yield "<p>And so on for the other columns.</p>"
    yield (
        "<p>The token is in the file that the service was started with. Each row names every column below; "
        "<code>null</code> is an empty cell; other names are ignored. With "
        f"<code>&quot;{SKIP}&quot;: true</code> rows that cannot be predicted get a reason; otherwise the "
        "whole request is refused.</p>"
    )
    yield "<p><code>GET /v1/model</code> (with the token) describes the model for programs.</p>"


def _example(ready: ReadyModel) -> Form:
    """A row of the right form with values from the plan, nobody's."""
    example: Form = {}
    for column in columns_form(ready):
        if column["kind"] == "category":
            example[column["name"]] = column["categories"][0]
        else:
            low, high = column["range"] or (0.0, 2.0)
            example[column["name"]] = float(f"{(low + high) / 2:.3g}")
    return example


def _columns(ready: ReadyModel) -> Iterable[str]:
    yield '<h2>Columns of a row</h2><div class="wide"><table><thead><tr><th>Column</th><th>Unit</th>'
    yield "<th>Allowed</th><th>If empty</th></tr></thead><tbody>"
    for feature in ready.plan.features:
        cells = (_name(feature), feature.unit or "", _allowed(feature), _if_empty(feature))
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in map(escape, cells))}</tr>"
    yield "</tbody></table></div>"


def _name(feature: Feature) -> str:
    if isinstance(feature, FeatureBlock):
        return f"{feature.prefix}… ({feature.columns} columns, see openapi.json)"
    return feature.name


def _allowed(feature: Feature) -> str:
    if not isinstance(feature, FeatureBlock) and feature.kind == "category":
        return ", ".join(feature.categories)
    return "any number" if feature.range is None else f"{feature.range[0]:g} to {feature.range[1]:g}"


def _if_empty(feature: Feature) -> str:
    return f"taken as {feature.missing.fill}" if feature.missing.action == "fill" else "not predicted"


def _answer(ready: ReadyModel) -> Iterable[str]:
    yield "<h2>The answer</h2><p><code>predictions</code> has one entry for each row, in their order:</p><dl>"
    yield "<div><dt>row</dt><dd>Its number, from 1.</dd></div>"
    task, threshold = ready.plan.task, ready.rule.threshold
    for name in ready.columns:
        told = "Probability of this class."
        if name == RISK:
            told = f"Risk of the event within {task.horizon:g} {task.time_unit}, from 0 to 1."
        elif name == LOG_HAZARD:
            told = "The model’s own score; higher is riskier."
        elif task.kind == "binary":
            told = f"Probability of {ready.labels[1]}, from 0 to 1."
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(told)}</dd></div>"
    if threshold is not None:
        other, positive = ready.labels
        told = f"{positive} where the probability is {threshold.value:.4g} or more, else {other}."
        yield f"<div><dt>{CLASS}</dt><dd>{escape(told)}</dd></div>"
    elif ready.labels:
        yield f"<div><dt>{CLASS}</dt><dd>The most probable class.</dd></div>"
    yield "<div><dt>reason</dt><dd>In place of the above: why the row has no prediction.</dd></div></dl>"


def _refusals() -> Iterable[str]:
    yield "<h2>Refusals</h2>"
    yield "<p>JSON with <code>code</code>, <code>message</code> and <code>hint</code>.</p><dl>"
    yield "".join(f"<div><dt>{code}</dt><dd>{escape(words)}</dd></div>" for code, words in _STATUS)
    yield "</dl>"
