"""The plans of the tests, as TOML: each test names what matters to it, the rest is the plan's own default.

plan_text("toy", binary("sick"), number("a", range=[-50, 50]), category("ward", "one", "two"),
          model=LINEAR, limits={"min_rows": 10})
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Table = dict[str, Any]
LINEAR: Table = {"name": "linear"}
COX_YEARS: Table = {"kind": "cox", "time_unit": "years", "metric": "c_index"}


def plan_text(name: str, task: Table, *features: Table, **sections: Table) -> str:
    """A whole plan; its model is linear unless another is given."""
    study = {"name": name, "title": "A study of the tests"} | sections.pop("study", {})
    whole = {"study": study, "task": task, "model": LINEAR} | sections
    tables = [toml_table(f"[{section}]", table) for section, table in whole.items()]
    return "\n".join([*tables, *(toml_table("[[features]]", one) for one in features)])


def binary(label: str, classes: Sequence[object] = (0, 1), **more: object) -> Table:
    return {"kind": "binary", "label": label, "classes": list(classes), "metric": "auroc"} | more


def cox(time: str, event: str, horizon: float, **more: object) -> Table:
    return COX_YEARS | {"time": time, "event": event, "horizon": horizon} | more


def number(name: str, **more: object) -> Table:
    return {"name": name, "kind": "number"} | more


def category(name: str, *categories: object, **more: object) -> Table:
    return {"name": name, "kind": "category", "categories": list(categories)} | more


def block(prefix: str, columns: int, **more: object) -> Table:
    return {"prefix": prefix, "columns": columns, "kind": "number"} | more


def mlp(*hidden: int, **more: object) -> Table:
    return {"name": "mlp", "hidden": list(hidden)} | more


def toml_table(header: str, table: Table) -> str:
    return "\n".join([header, *(f"{key} = {toml_value(value)}" for key, value in table.items()), ""])


def toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(inner) for inner in value)}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
