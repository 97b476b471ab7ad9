"""The plan of sites: tier rule, sizes, scale, regions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.errors import FedmapError
from fedmap_lab.cohorts import cprd, eicu
from fedmap_lab.cohorts.site_plan import LARGEST_SCALE, PlanSettings, plan_sites

PLANS = pytest.mark.parametrize("settings", [cprd.PLAN, eicu.PLAN], ids=["cprd", "eicu"])


def tier_by_rule(settings: PlanSettings, rows: int) -> int:
    large, small = (2000, 500) if settings is cprd.PLAN else (400, 100)
    return 1 if rows > large else 3 if rows < small else 2


@PLANS
@pytest.mark.parametrize("seed", [0, 1])
def test_tiers_follow_the_size_rule_exactly(settings: PlanSettings, seed: int) -> None:
    for site in plan_sites(settings, 1.0, seed):
        assert site.tier == tier_by_rule(settings, site.rows), site.site


@PLANS
def test_the_full_plan_has_the_sites_and_sizes_of_the_study(settings: PlanSettings) -> None:
    planned = plan_sites(settings, 1.0, 0)
    for tier in settings.tiers:
        rows = np.array([site.rows for site in planned if site.tier == tier.tier])
        assert len(rows) == tier.sites
        assert rows.mean() == pytest.approx(tier.mean, rel=0.02)
        assert rows.std() == pytest.approx(tier.sd, rel=0.10)


@PLANS
def test_a_site_is_the_same_at_every_scale(settings: PlanSettings) -> None:
    full = {site.site: site for site in plan_sites(settings, 1.0, 5)}
    large = {site.site: site for site in plan_sites(settings, 1.5, 5)}
    for site in plan_sites(settings, 0.1, 5):
        assert full[site.site] == site
        assert large[site.site] == site


@given(scale=st.floats(min_value=1e-6, max_value=2.0), seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_every_scale_leaves_sites_to_federate_fine_tune_and_predict(scale: float, seed: int) -> None:
    planned = plan_sites(eicu.PLAN, scale, seed)
    counts = [sum(site.tier == tier for site in planned) for tier in (1, 2, 3)]
    assert counts[0] >= 3
    assert min(counts) >= 1
    assert len({site.site for site in planned}) == len(planned)
    assert len({site.entropy for site in planned}) == len(planned)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, LARGEST_SCALE + 1])
def test_a_scale_out_of_bounds_is_refused_with_a_hint(scale: float) -> None:
    with pytest.raises(FedmapError, match="scale") as caught:
        plan_sites(cprd.PLAN, scale, 0)
    assert caught.value.hint


@PLANS
def test_regions_are_all_there_and_unequal(settings: PlanSettings) -> None:
    names = [site.region for site in plan_sites(settings, 1.0, 0)]
    counts = [names.count(region.name) for region in settings.regions]
    assert min(counts) > 0
    assert max(counts) > 2 * min(counts)


def test_risk_functions_cluster_by_region_but_only_in_part() -> None:
    planned = plan_sites(cprd.PLAN, 1.0, 0)
    risk = np.array([site.risk for site in planned])
    region = np.array([site.region for site in planned])
    means = np.array([risk[region == name].mean(axis=0) for name in region])
    explained = means.var(axis=0) / risk.var(axis=0)
    assert 0.15 < explained.mean() < 0.60


def test_every_seed_has_the_same_amount_of_heterogeneity() -> None:
    for seed in (0, 1):
        planned = plan_sites(cprd.PLAN, 1.0, seed)
        effects = np.array([(s.rate, s.case_mix, *s.covariates, *s.risk) for s in planned])
        np.testing.assert_allclose(effects.mean(axis=0), 0.0, atol=1e-9)
        np.testing.assert_allclose(effects.std(axis=0), 1.0, atol=0.02)
