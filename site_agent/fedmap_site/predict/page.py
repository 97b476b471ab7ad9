"""The prediction service described for people: one page, no script, nothing from anywhere else.

The same facts as `/openapi.json`, for who writes the hospital's side of it.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedmap.study.plan import FeatureBlock
from fedmap.study.plan.features import Feature
from fedmap.web.pages import Pages
from fedmap_site.predict.rows import ReadyModel
from fedmap_site.predict.service import MOST_ROWS, ROWS, SKIP, Form, columns_form, outputs_in_words

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
