"""The intensive-care cohort: file shape, sparse counts, hospitals' habits, risk functions that differ."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedmap_lab.cohorts import eicu
from fedmap_lab.cohorts.icu_risk import channels, hospital_deviation, shared_logit
from fedmap_lab.cohorts.site_plan import SiteTable

RANGES = {
    "gcs_eyes": (1, 4),
    "gcs_motor": (1, 6),
    "gcs_verbal": (1, 5),
    "heart_rate": (20, 250),
    "systolic_bp": (40, 260),
    "respiration": (3, 70),
    "o2_saturation": (50, 100),
}


@pytest.fixture(scope="module")
def tables() -> list[SiteTable]:
    return [eicu.make_site(site) for site in eicu.plan(0.2, 0)]


def test_the_file_has_exactly_the_columns_of_the_study(tables: list[SiteTable]) -> None:
    expected = [
        "patientunitstayid",
        "uniquepid",
        *(f"drug_{i:04d}" for i in range(1, 1412)),
        *(f"dx_{i:03d}" for i in range(1, 687)),
        *RANGES,
        "died",
    ]
    for table in tables:
        assert list(table.frame.columns) == expected
        assert not table.frame.isna().to_numpy().any()
        assert len(table.frame) == table.site.rows == len(table.positive)
        assert set(table.frame["died"]) <= {0, 1}


@pytest.mark.parametrize(("column", "limits"), RANGES.items())
def test_vital_signs_lie_in_plausible_ranges(
    tables: list[SiteTable], column: str, limits: tuple[float, float]
) -> None:
    for table in tables:
        assert table.frame[column].between(*limits).all(), column


def test_counts_are_small_sparse_and_unequally_popular(tables: list[SiteTable]) -> None:
    for names in (eicu.DRUG_COLUMNS, eicu.CODE_COLUMNS):
        counts = np.concatenate([table.frame[list(names)].to_numpy() for table in tables])
        assert counts.dtype == np.uint8
        assert counts.max() < 200
        assert (counts > 0).mean() < 0.02
        popularity = np.sort((counts > 0).mean(axis=0))[::-1]
        assert popularity[0] > 3 * popularity[50]
        assert popularity[50] > 2 * popularity[400]


def test_every_stay_has_the_orders_and_diagnoses_the_study_asks_for(tables: list[SiteTable]) -> None:
    for table in tables:
        assert table.frame[list(eicu.DRUG_COLUMNS)].to_numpy().sum(axis=1).min() >= 4
        assert table.frame[list(eicu.CODE_COLUMNS)].to_numpy().sum(axis=1).min() >= 3


def test_some_patients_have_several_stays_and_no_stay_twice(tables: list[SiteTable]) -> None:
    frame = tables[0].frame
    assert frame["patientunitstayid"].is_unique
    assert 0.03 < 1 - frame["uniquepid"].nunique() / len(frame) < 0.2
    owners = [set(table.frame["uniquepid"]) for table in tables]
    assert len(set().union(*owners)) == sum(len(o) for o in owners)


def test_hospitals_order_by_different_names(tables: list[SiteTable]) -> None:
    use = [(t.frame[list(eicu.DRUG_COLUMNS)].to_numpy() > 0).mean(axis=0) for t in tables if t.site.tier == 1]
    between = np.corrcoef(use[0], use[1])[0, 1]
    assert 0.1 < between < 0.9  # related, by popularity and region, but not the same
    halves = tables[0].frame[list(eicu.DRUG_COLUMNS)].to_numpy() > 0
    within = np.corrcoef(halves[::2].mean(axis=0), halves[1::2].mean(axis=0))[0, 1]
    assert within > between + 0.05


def test_two_hospitals_rank_the_same_patients_differently(tables: list[SiteTable]) -> None:
    first, second = tables[0], tables[1]
    drugs, codes, signs = (
        first.candidates[list(names)].to_numpy(dtype=np.float64)
        for names in (eicu.DRUG_COLUMNS, eicu.CODE_COLUMNS, eicu.SIGNS)
    )
    x = channels(drugs, codes, signs, eicu.VOCABULARY)
    here = shared_logit(x) + hospital_deviation(x, first.site.risk)
    there = shared_logit(x) + hospital_deviation(x, second.site.risk)
    np.testing.assert_allclose(here, first.risk)  # the known risk, from the file's own columns
    assert np.corrcoef(here, there)[0, 1] < 0.95


def test_the_known_risk_of_a_hospital_ranks_better_than_the_shared_one(tables: list[SiteTable]) -> None:
    own, shared = [], []
    for table in tables:
        if table.positive.sum() < 15:
            continue
        drugs, codes, signs = (
            table.candidates[list(names)].to_numpy(dtype=np.float64)
            for names in (eicu.DRUG_COLUMNS, eicu.CODE_COLUMNS, eicu.SIGNS)
        )
        own.append(roc_auc_score(table.positive, table.risk))
        x = channels(drugs, codes, signs, eicu.VOCABULARY)
        shared.append(roc_auc_score(table.positive, shared_logit(x)))
    assert len(own) >= 5
    assert 0.80 < np.median(own) < 0.90
    assert np.mean(own) > np.mean(shared) + 0.01
