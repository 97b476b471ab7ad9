"""Groups of sites before and after, and none so small that it is nearly one site."""

from __future__ import annotations

import pytest

from fedmap_lab.statistics.who_gains import equity

BEFORE = {"n1": 0.60, "n2": 0.62, "n3": 0.64, "s1": 0.74, "s2": 0.75, "s3": 0.76, "e1": 0.9}
AFTER = {"n1": 0.70, "n2": 0.71, "n3": 0.72, "s1": 0.75, "s2": 0.76, "s3": 0.75, "e1": 0.1}
REGION = {
    "n1": "North",
    "n2": "North",
    "n3": "North",
    "s1": "South",
    "s2": "South",
    "s3": "South",
    "e1": "East",
}


def test_spread_between_best_and_worst_region_before_and_after() -> None:
    found = equity("auroc", "fedmap", BEFORE, AFTER, REGION)
    assert found.spread_before == pytest.approx(0.75 - 0.62)
    assert found.spread_after == pytest.approx(0.75 - 0.71)
    north = next(row for row in found.groups if row.group == "North")
    assert (north.sites, north.improved) == (3, 1.0)
    assert north.median_gain == pytest.approx(0.09)


def test_region_of_one_site_is_named_but_gives_no_figure_away() -> None:
    found = equity("auroc", "fedmap", BEFORE, AFTER, REGION)
    east = next(row for row in found.groups if row.group == "East")
    assert (east.sites, east.before, east.after, east.median_gain) == (None, None, None, None)
    assert found.hidden == 1


def test_spread_needs_two_groups() -> None:
    found = equity("auroc", "fedmap", BEFORE, AFTER, REGION, fewest_sites=4)
    assert (found.spread_before, found.spread_after) == (None, None)


def test_sites_without_a_value_before_or_after_or_without_a_group_do_not_count() -> None:
    after = {site: value for site, value in AFTER.items() if site != "n1"}
    found = equity("auroc", "fedmap", BEFORE | {"lost": 0.5}, after | {"lost": 0.5}, REGION, fewest_sites=2)
    assert [row.sites for row in found.groups if row.group == "North"] == [2]
    assert {row.group for row in found.groups} == {"North", "South", "East"}
