"""The inputs that the plan alone fixes are those that the loader gives to a site's rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmap.data.features import encode_features
from fedmap.study.models import build_model, model_of
from fedmap.study.plan import FeatureBlock, StudyPlan, load_plan
from fedmap.study.plan.inputs import planned_inputs

PLANS = sorted((Path(__file__).parents[2] / "lab" / "fedmap_lab" / "plans").glob("*.toml"))


def invented_frame(plan: StudyPlan) -> pd.DataFrame:
    columns: dict[str, object] = {}
    for feature in plan.features:
        if isinstance(feature, FeatureBlock):
            columns |= {f"{feature.prefix}{i:05d}": np.zeros(2) for i in range(feature.columns)}
        elif feature.kind == "category":
            columns[feature.name] = [feature.categories[0], feature.categories[-1]]
        else:
            columns[feature.name] = np.zeros(2)
    return pd.DataFrame(columns)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_planned_inputs_equal_the_layout_of_a_loaded_site(path: Path) -> None:
    plan = load_plan(path)
    layout = encode_features(invented_frame(plan), plan.features).layout
    inputs = planned_inputs(plan)
    assert inputs.count == len(layout.names)
    assert inputs.scaled == layout.scaled
    assert inputs.groups == layout.groups
    assert model_of(plan) == build_model(plan, layout.groups, len(layout.names))
