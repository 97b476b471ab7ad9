"""Measured heterogeneity: right formulas, and cohorts near their targets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from sklearn.metrics import roc_auc_score

from fedmap.errors import FedmapError
from fedmap_lab.cohorts.heterogeneity import (
    Spread,
    distances_between_sites,
    measure_heterogeneity,
    most_predictive_feature,
    univariate_auroc,
)
from fedmap_lab.cohorts.making import COHORTS

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=60)


@given(rows=PAIRS)
@settings(max_examples=60, deadline=None)
def test_auroc_of_one_column_is_that_of_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    positive = np.array([r[1] for r in rows])
    if positive.all() or not positive.any():
        return
    values = np.array([r[0] for r in rows])
    expected = roc_auc_score(positive, values)
    assert univariate_auroc(values.astype(np.uint8), positive) == pytest.approx(expected)
    assert univariate_auroc(values / 7, positive) == pytest.approx(expected)


@given(
    sites=st.lists(
        st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=1, max_size=20), min_size=2, max_size=5
    )
)
@settings(max_examples=60, deadline=None)
def test_distances_between_sites_are_those_of_scipy(sites: list[list[float]]) -> None:
    values = np.concatenate([np.array(s, dtype=np.float64) for s in sites])
    site_of = np.repeat(np.arange(len(sites)), [len(s) for s in sites])
    expected = [wasserstein_distance(a, b) for a, b in combinations(sites, 2)]
    np.testing.assert_allclose(distances_between_sites(values, site_of), expected, atol=1e-9)


def test_a_protective_feature_can_be_the_most_predictive() -> None:
    positive = np.array([True, True, False, False])
    columns = pd.DataFrame({"noise": [1, 0, 1, 0], "protects": [0, 1, 2, 3]})
    assert most_predictive_feature(columns, positive) == "protects"


def test_one_outcome_class_is_an_error_with_a_hint() -> None:
    with pytest.raises(FedmapError, match="one outcome class"):
        most_predictive_feature(pd.DataFrame({"x": [1, 2]}), np.array([True, True]))


def test_a_spread_reads_as_in_a_table() -> None:
    assert str(Spread(3276.4, 1192)) == "3,276 ± 1,192"
    assert str(Spread(0.14, 0.052)) == "0.14 ± 0.05"
    assert str(Spread(9)) == "9"


@pytest.mark.parametrize(
    ("name", "scale", "feature"),
    [("cprd", 0.3, "landmark_age"), ("interval", 1.0, "MCH_pg"), ("eicu", 0.5, "gcs_motor")],
)
def test_a_cohort_is_near_the_targets_of_the_study(name: str, scale: float, feature: str) -> None:
    generator = COHORTS[name]
    tables = [generator.make_site(site) for site in generator.plan(scale, 3)]
    measured = measure_heterogeneity(tables, generator.targets(scale))
    rows = {row.quantity: row for row in measured.rows}
    assert measured.feature == feature
    for quantity, row in rows.items():
        if row.target.sd is None:
            assert row.measured.mean == row.target.mean, quantity
        else:
            assert row.measured.mean == pytest.approx(row.target.mean, rel=0.3), quantity
    for quantity in ("positive share per site", "Wasserstein distance between sites"):
        target, found = rows[quantity].target.sd, rows[quantity].measured.sd
        assert target is not None
        assert found == pytest.approx(target, rel=0.4), quantity
