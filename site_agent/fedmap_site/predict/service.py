"""Predictions for rows that come as JSON: what the local service answers, without HTTP.

A request's rows pass the same checks as a file's. An error names columns and counts, never a value; nothing
of a request is kept or logged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fedmap.data.feature_rows import Cell, FeatureRows, check_records
from fedmap.data.table.faults import FaultTally
from fedmap.errors import DataError, LimitError, StateError
from fedmap.study.plan.sections import FeatureBlock
from fedmap_site.predict.rows import CLASS, LOG_HAZARD, RISK, Predictor, ReadyModel

MOST_ROWS = 10_000
ROWS, SKIP = "rows", "skip_bad_rows"
Form = dict[str, Any]  # of JSON
_SOURCE = "the request"


class PredictionService:
    """One model, ready to answer; safe to ask from several threads at once."""

    def __init__(self, ready: ReadyModel, now_unix_ms: Callable[[], int]) -> None:
        if ready.scales_by_own_rows:
            raise StateError(
                "this study scales a site's rows by their own statistics, and single requests have none",
                hint="Fine-tune first and serve the personal model (--model), or predict whole files.",
            )
        self.ready = ready
        self._now = now_unix_ms
        self._predictor = Predictor(ready)

    def predict(self, body: bytes) -> Form:
        """The answer to a request's body."""
        self.ready.refuse_if_expired(self._now())
        records, skip_bad_rows = parse_request(body)
        rows = check_records(self.ready.plan, self.ready.inputs, records)
        tally = FaultTally()
        tally.add(len(rows), rows.faults, rows.left_out)
        skipped = int((~rows.usable).sum())
        if skipped and not skip_bad_rows:
            problems = (f"{skipped} of {len(rows)} rows cannot be predicted", *tally.problems())
            hint = f'Correct these cells; or send "{SKIP}": true, and such rows get a reason instead.'
            raise DataError(_SOURCE, problems, hint=hint)
        return {
            "model": self.ready.name,
            "personal": self.ready.personal,
            "rows": len(rows),
            "skipped": skipped,
            "problems": list(tally.problems()),
            "predictions": self._predictions(rows),
        }

    def describe(self) -> Form:
        """What the model is and what it needs."""
        ready, task = self.ready, self.ready.plan.task
        threshold = ready.rule.threshold
        return {
            "model": ready.name,
            "personal": ready.personal,
            "title": ready.title,
            "intended_use": ready.intended_use,
            "note": ready.note,
            "bundle_sha256": ready.bundle_sha256,
            "expires_unix_ms": ready.expires_unix_ms,
            "task": task.kind,
            "classes": list(ready.labels),
            "threshold": None if threshold is None else threshold.value,
            "horizon": task.horizon,
            "time_unit": task.time_unit,
            "outputs": [*ready.columns, *([CLASS] if ready.labels else [])],
            "columns": columns_form(ready),
            "most_rows": MOST_ROWS,
        }

    def _predictions(self, rows: FeatureRows) -> list[Form]:
        ready = self.ready
        found = self._predictor.predict(rows.usable_values)
        columns = {name: found.numbers[name].tolist() for name in ready.columns}
        classes = None if found.classes is None else found.classes.tolist()
        reasons = rows.reasons()
        answers: list[Form] = []
        at = 0
        for row, usable in enumerate(rows.usable.tolist()):
            if not usable:
                answers.append({"row": row + 1, "reason": reasons[row]})
                continue
            answer: Form = {"row": row + 1, **{name: values[at] for name, values in columns.items()}}
            if classes is not None:
                answer[CLASS] = ready.labels[classes[at]]
            answers.append(answer)
            at += 1
        return answers


def outputs_in_words(ready: ReadyModel) -> dict[str, str]:
    """What each entry of a prediction means."""
    task, threshold, words = ready.plan.task, ready.rule.threshold, {}
    for name in ready.columns:
        words[name] = "Probability of this class."
        if name == RISK:
            words[name] = f"Risk of the event within {task.horizon:g} {task.time_unit}, from 0 to 1."
        elif name == LOG_HAZARD:
            words[name] = "The model’s own score; higher is riskier."
        elif task.kind == "binary":
            words[name] = f"Probability of {ready.labels[1]}, from 0 to 1."
    if threshold is not None:
        other, positive = ready.labels
        words[CLASS] = f"{positive} where the probability is {threshold.value:.4g} or more, else {other}."
    elif ready.labels:
        words[CLASS] = "The most probable class."
    return words


def columns_form(ready: ReadyModel) -> list[Form]:
    """The columns that a row has to bring, as the plan describes them."""
    columns: list[Form] = []
    at = 0
    for feature in ready.plan.features:
        common: Form = {
            "kind": feature.kind,
            "unit": feature.unit,
            "range": None if feature.range is None else list(feature.range),
            "missing": feature.missing.action,
            "fill": feature.missing.fill,
        }
        if isinstance(feature, FeatureBlock):
            columns += [{"name": name, **common} for name in ready.inputs[at : at + feature.columns]]
            at += feature.columns
        elif feature.kind == "category":
            columns.append({"name": feature.name, **common, "categories": list(feature.categories)})
            at += len(feature.categories) - 1
        else:
            columns.append({"name": feature.name, **common})
            at += 1
    return columns


def parse_request(body: bytes) -> tuple[Sequence[dict[str, Cell]], bool]:
    """(rows, whether bad ones may be skipped); anything else than the form that is described is refused."""
    try:
        # Whole numbers as float: a number of a thousand digits is then infinite, and no work.
        form = json.loads(body, parse_int=float, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise _malformed("the body is no JSON, or names something twice") from None
    if not isinstance(form, dict) or ROWS not in form or set(form) - {ROWS, SKIP}:
        raise _malformed(f"the body must be an object with {ROWS}, and perhaps {SKIP}")
    rows, skip = form[ROWS], form.get(SKIP, False)
    if not isinstance(skip, bool):
        raise _malformed(f"{SKIP} must be true or false")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _malformed(f"{ROWS} must be a list of objects, at least one")
    if len(rows) > MOST_ROWS:
        raise LimitError(
            f"{len(rows)} rows at once; the limit is {MOST_ROWS}",
            hint="Send several requests, or predict a file with `fedmap-site predict`.",
        )
    nested = sum(any(isinstance(cell, dict | list) for cell in row.values()) for row in rows)
    if nested:
        raise _malformed(f"{nested} rows hold lists or objects where values belong")
    return rows, skip


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) != len(pairs):
        raise ValueError("a key is there twice")
    return form


def _no_constant(_: str) -> NoReturn:
    raise ValueError("not a finite number")


def _malformed(problem: str) -> DataError:
    return DataError(_SOURCE, (problem,), hint="GET /openapi.json describes the form of a request.")
