"""Empty cells are counted by feature, before any row is left out for them."""

from __future__ import annotations

import pandas as pd
import pytest

from fedmap.data.loading import load_frame
from fedmap.data.table.site_dataset import MissingCount
from fedmap.study.plan import parse_plan
from tests import plans

PLAN = plans.plan_text(
    "demo",
    plans.binary("sick"),
    plans.number("sbp", missing="exclude"),
    plans.category("sex", "F", "M", missing={"fill": "F"}),
    plans.block("drug_", 2, missing={"fill": 0}),
    limits={"min_rows": 10, "min_events": 2},
)


@pytest.mark.parametrize("tier", [1, 3])
def test_cells_are_counted_whatever_becomes_of_them(tier: int) -> None:
    rows = 40
    frame = pd.DataFrame(
        {
            "sbp": [None if row < 4 else 120.0 + row for row in range(rows)],
            "sex": ["" if row % 10 == 0 else "M" for row in range(rows)],
            "drug_a": [None if row < 7 else 1.0 for row in range(rows)],
            "drug_b": [float(row) for row in range(rows)],
            "sick": [row % 2 for row in range(rows)],
        }
    )
    data = load_frame(parse_plan(PLAN, "demo.toml"), "north", frame, tier)
    assert data.missing == (
        MissingCount("sbp", 4, 40),
        MissingCount("sex", 4, 40),
        MissingCount("drug_", 7, 80),
    )
    assert sum(exclusion.rows for exclusion in data.exclusions) == 4
