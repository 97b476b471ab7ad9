"""The primary-care cohort: file shape, consistent histories, known and different risk functions."""

from __future__ import annotations

import numpy as np
import pytest
from sksurv.metrics import concordance_index_censored

from fedmap_lab.cohorts import cprd
from fedmap_lab.cohorts.site_plan import SiteTable

COLUMNS = [
    "pracid",
    "patid",
    "sex",
    "smoking_status",
    "bp_med",
    "diabetes_diag",
    "sbp",
    "tchol",
    "hdl",
    "landmark_age",
    "end_time",
    "event",
    "cvd_before_landmark",
    "death_before_landmark",
]


@pytest.fixture(scope="module")
def tables() -> list[SiteTable]:
    return [cprd.make_site(site) for site in cprd.plan(0.02, 0)]


def test_the_file_has_exactly_the_columns_of_the_study(tables: list[SiteTable]) -> None:
    for table in tables:
        assert list(table.frame.columns) == COLUMNS
        assert not table.frame.isna().to_numpy().any()


def test_values_lie_in_plausible_ranges(tables: list[SiteTable]) -> None:
    for table in tables:
        frame = table.frame
        assert set(frame["sex"]) == {"F", "M"}
        for flag in ("smoking_status", "bp_med", "diabetes_diag", "event", *COLUMNS[-2:]):
            assert set(frame[flag]) <= {0, 1}
        assert frame["sbp"].between(60, 260).all()
        assert frame["tchol"].between(1, 15).all()
        assert frame["hdl"].between(0.2, 5).all()
        assert set(frame["landmark_age"]) <= set(range(40, 90, 5))
        assert (frame["end_time"] >= 0).all()


def test_usable_rows_are_those_the_loader_keeps_and_as_many_as_planned(tables: list[SiteTable]) -> None:
    for table in tables:
        frame = table.frame
        kept = (
            (frame["cvd_before_landmark"] == 0)
            & (frame["death_before_landmark"] == 0)
            & (frame["end_time"] > 0)
        )
        np.testing.assert_array_equal(kept.to_numpy(), table.usable)
        assert int(kept.sum()) == table.site.rows == len(table.positive) == len(table.risk)


def test_each_exclusion_rule_finds_work_in_a_large_practice(tables: list[SiteTable]) -> None:
    frame = max(tables, key=lambda table: table.site.rows).frame
    assert frame["cvd_before_landmark"].sum() > 0
    assert frame["death_before_landmark"].sum() > 0
    unflagged = (frame["cvd_before_landmark"] == 0) & (frame["death_before_landmark"] == 0)
    assert (frame.loc[unflagged, "end_time"] == 0).sum() > 0
    assert 0 < (~unflagged).mean() < 0.1


def test_the_rows_of_a_patient_tell_one_history(tables: list[SiteTable]) -> None:
    frame = tables[0].frame[tables[0].usable]
    ends = frame.assign(age_at_end=frame["landmark_age"] + frame["end_time"]).groupby("patid")
    assert (ends.size() > 1).mean() > 0.2
    assert (ends["age_at_end"].max() - ends["age_at_end"].min()).max() < 0.01
    assert (ends["event"].nunique() == 1).all()
    assert (ends["sex"].nunique() == 1).all()
    assert not frame.duplicated(["patid", "landmark_age"]).any()


def test_patients_of_two_practices_never_share_an_identifier(tables: list[SiteTable]) -> None:
    patients = [set(table.frame["patid"]) for table in tables]
    assert len(set().union(*patients)) == sum(len(p) for p in patients)


def test_follow_up_is_as_long_as_in_the_study(tables: list[SiteTable]) -> None:
    times = np.concatenate([table.frame["end_time"].to_numpy()[table.usable] for table in tables])
    assert np.median(times) == pytest.approx(8.9, abs=0.4)


def covariates_of(table: SiteTable) -> cprd.Covariates:
    male, smoker, treated, diabetes, sbp, tchol, hdl, age = table.candidates.to_numpy(np.float64).T
    return cprd.standardise(cprd.Measurements(age, male, smoker, treated, diabetes, sbp, tchol, hdl))


def test_practices_rank_the_same_patients_differently(tables: list[SiteTable]) -> None:
    x = covariates_of(tables[0])
    risks = [cprd.shared_log_hazard(x) + cprd.practice_deviation(x, table.site.risk) for table in tables]
    np.testing.assert_allclose(risks[0], tables[0].risk, atol=1e-5)  # known, from the file's own columns
    agreement = np.asarray(np.corrcoef(risks))[np.triu_indices(len(risks), 1)]
    assert 0.3 < np.median(agreement) < 0.95


def test_the_known_risk_of_the_practice_ranks_better_than_the_shared_one() -> None:
    gains, oracle = [], []
    for site in cprd.plan(0.06, 0)[:11]:
        table = cprd.make_site(site)
        x = covariates_of(table)
        times = np.minimum(table.frame["end_time"].to_numpy()[table.usable], 10.0)
        own = concordance_index_censored(table.positive, times, table.risk)[0]
        shared = concordance_index_censored(table.positive, times, cprd.shared_log_hazard(x))[0]
        gains.append(own - shared)
        oracle.append(own)
    assert 0.70 < np.median(oracle) < 0.77
    assert np.mean(gains) > 0.015
