"""The donor cohort: file shape, blood counts that agree with each other, risk functions that differ."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fedmap_lab.cohorts import interval
from fedmap_lab.cohorts.interval import shared_logit, standardise
from fedmap_lab.cohorts.site_plan import SiteTable

COLUMNS = [*interval.COUNTS, "Age", "Sex", "ferritin_low", "delay_hours", "height_m", "weight_kg"]
RANGES = {
    "WBC_10_9_L": (1, 30),
    "RBC_10_12_L": (2, 8),
    "HGB_g_L": (50, 220),
    "HCT_PCT": (20, 65),
    "MCV_fL": (50, 120),
    "MCH_pg": (15, 40),
    "MCHC_g_dL": (25, 40),
    "PLT_10_9_L": (20, 800),
    "RDW_SD_fL": (25, 80),
    "NEUT_10_9_L": (0, 20),
    "LYMPH_10_9_L": (0, 10),
    "MONO_10_9_L": (0, 3),
    "EO_10_9_L": (0, 3),
    "BASO_10_9_L": (0, 1),
    "NRBC_10_9_L": (0, 1),
    "IG_10_9_L": (0, 1),
    "Age": (18, 80),
}


@pytest.fixture(scope="module")
def tables() -> list[SiteTable]:
    return [interval.make_site(site) for site in interval.plan(1.0, 0)]


def test_the_file_has_exactly_the_columns_of_the_study(tables: list[SiteTable]) -> None:
    for table in tables:
        assert list(table.frame.columns) == COLUMNS
        assert not table.frame.isna().to_numpy().any()
        assert set(table.frame["Sex"]) == {"F", "M"}
        assert set(table.frame["ferritin_low"]) == {0, 1}


@pytest.mark.parametrize(("column", "limits"), RANGES.items())
def test_blood_counts_lie_in_plausible_ranges(
    tables: list[SiteTable], column: str, limits: tuple[float, float]
) -> None:
    for table in tables:
        assert table.frame[column].between(*limits).all(), column


def test_sites_and_tiers_are_those_of_the_study(tables: list[SiteTable]) -> None:
    assert [(t.site.tier, len(t.positive)) for t in tables] == [
        (1, 15772),
        (1, 12491),
        (1, 2024),
        (2, 1361),
        (3, 301),
    ]


def test_red_cell_indices_agree_with_each_other(tables: list[SiteTable]) -> None:
    f = tables[0].frame
    np.testing.assert_allclose(f["HCT_PCT"] * 10 / f["RBC_10_12_L"], f["MCV_fL"], rtol=0.01)
    np.testing.assert_allclose(f["HGB_g_L"] / f["RBC_10_12_L"], f["MCH_pg"], rtol=0.01)
    np.testing.assert_allclose(f["HGB_g_L"] * 10 / f["HCT_PCT"], f["MCHC_g_dL"], rtol=0.01)
    white = f[["NEUT_10_9_L", "LYMPH_10_9_L", "MONO_10_9_L", "EO_10_9_L", "BASO_10_9_L"]].sum(axis=1)
    np.testing.assert_allclose(white, f["WBC_10_9_L"], atol=0.05)


def test_iron_deficiency_lowers_haemoglobin_and_cell_size_and_widens_cells(tables: list[SiteTable]) -> None:
    for table in tables[:4]:
        low, replete = table.candidates[table.positive].mean(), table.candidates[~table.positive].mean()
        assert (low < replete)[["HGB_g_L", "MCV_fL", "MCH_pg"]].all()
        assert low["RDW_SD_fL"] > replete["RDW_SD_fL"]


def test_older_and_younger_donors_come_from_the_age_selection_of_the_study(tables: list[SiteTable]) -> None:
    older, younger = tables[0].frame["Age"], tables[1].frame["Age"]
    assert older.median() > 58
    assert younger.median() < 38
    assert (older < 40).mean() < 0.05
    assert (younger > 60).mean() < 0.05


def test_each_exclusion_rule_finds_work(tables: list[SiteTable]) -> None:
    frame = tables[0].frame
    rules = (
        frame["delay_hours"] > 36,
        ~frame["height_m"].between(0.5, 2.5),
        ~frame["weight_kg"].between(30, 190),
    )
    assert all(rule.sum() > 0 for rule in rules)
    excluded = rules[0] | rules[1] | rules[2]
    np.testing.assert_array_equal(~excluded.to_numpy(), tables[0].usable)
    assert excluded.mean() < 0.03


def test_a_smaller_scale_is_the_beginning_of_the_same_file(tables: list[SiteTable]) -> None:
    for small, full in zip(interval.plan(0.1, 0), tables, strict=True):
        table = interval.make_site(small)
        assert len(table.positive) == max(interval.FEWEST_ROWS, round(full.site.rows * 0.1))
        np.testing.assert_array_equal(table.frame, full.frame.iloc[: len(table.frame)])


def test_a_larger_scale_begins_with_the_same_file(tables: list[SiteTable]) -> None:
    table = interval.make_site(interval.plan(2.0, 0)[3])
    assert len(table.positive) == 2 * 1361
    np.testing.assert_array_equal(table.frame.iloc[: len(tables[3].frame)], tables[3].frame)


def test_wide_cells_mean_more_where_the_known_coordinate_says_so(tables: list[SiteTable]) -> None:
    """Logistic fits per site find the order of the sites that the generator put in."""
    slopes = []
    for table in tables[:3]:
        x = standardise(table.frame[table.usable])
        columns = np.column_stack(
            [x.cell_haemoglobin, x.width, x.haemoglobin, x.concentration, x.platelets, x.female]
        )
        slopes.append(float(LogisticRegression(max_iter=200).fit(columns, table.positive).coef_[0, 1]))
    known = [table.site.risk[1] for table in tables[:3]]
    assert np.argsort(slopes).tolist() == np.argsort(known).tolist()
    assert max(slopes) - min(slopes) > 0.5


def test_the_known_risk_of_a_site_ranks_better_than_the_shared_one(tables: list[SiteTable]) -> None:
    for table in tables[:3]:
        shared = shared_logit(standardise(table.frame[table.usable]))
        own = roc_auc_score(table.positive, table.risk)
        assert 0.86 < own < 0.94
        assert own > roc_auc_score(table.positive, shared) + 0.003
