"""Paired statistics over sites, held against hand-computed values, scipy and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from fedmap_lab.statistics.paired import compare_all, compare_pair, gain, holm, median_interval

P_VALUES = st.lists(st.floats(0.0, 1.0), max_size=12)


def _sites(values: list[float]) -> dict[str, float]:
    return {f"site-{number:03}": value for number, value in enumerate(values)}


def test_gain_counts_less_of_a_brier_score_as_better() -> None:
    assert gain("auroc", 0.8, 0.7) == pytest.approx(0.1)
    assert gain("brier", 0.10, 0.15) == pytest.approx(0.05)


def test_gain_of_a_calibration_slope_is_how_much_nearer_to_one_it_is() -> None:
    assert gain("calibration_slope", 1.1, 0.7) == pytest.approx(0.2)
    assert gain("calibration_slope", 1.4, 0.7) == pytest.approx(-0.1)


def test_only_sites_that_both_methods_scored_are_paired() -> None:
    ours = _sites([0.8] * 8) | {"only-ours": 0.99}
    theirs = _sites([0.7, 0.75, 0.72, 0.74, 0.71, 0.73, 0.85, 0.7]) | {"only-theirs": 0.01}
    result = compare_pair("auroc", "fedmap", "individual", ours, theirs)
    assert result is not None
    assert result.sites == 8
    assert result.improved == pytest.approx(7 / 8)
    assert result.median_gain == pytest.approx(0.075)
    differences = [0.1, 0.05, 0.08, 0.06, 0.09, 0.07, -0.05, 0.1]
    assert result.p == pytest.approx(wilcoxon(differences).pvalue)


def test_five_sites_are_too_few_for_a_test_and_the_result_says_so() -> None:
    result = compare_pair("auroc", "a", "b", _sites([0.9] * 5), _sites([0.1] * 5))
    assert result is not None
    assert (result.p, result.low, result.high) == (None, None, None)
    assert "no test is possible" in result.note
    assert result.improved == 1.0


def test_six_wins_of_six_can_be_told_from_chance() -> None:
    worse = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    result = compare_pair("auroc", "a", "b", _sites([v + 0.1 * v for v in worse]), _sites(worse))
    assert result is not None
    assert result.p == pytest.approx(2 / 2**6)


def test_methods_that_agree_everywhere_have_p_one() -> None:
    values = _sites([0.6, 0.7, 0.8, 0.9, 0.65, 0.75])
    result = compare_pair("auroc", "a", "b", values, values)
    assert result is not None
    assert (result.p, result.median_gain, result.improved) == (1.0, 0.0, 0.0)


def test_methods_without_a_common_site_are_left_out() -> None:
    assert compare_pair("auroc", "a", "b", {"x": 0.5}, {"y": 0.5}) is None


def test_interval_of_the_median_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    inside = 0
    for trial in range(100):
        low, high = median_interval(generator.normal(0.3, 1.0, 40), trial)
        inside += low <= 0.3 <= high
    assert inside >= 88


def test_holm_agrees_with_a_table_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))


@given(P_VALUES)
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(before <= after <= 1.0 for before, after in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [corrected[i] for i in order] == sorted(corrected)


def test_all_methods_of_a_table_are_corrected_together() -> None:
    generator = np.random.default_rng(1)
    alone = _sites(generator.uniform(0.6, 0.8, 20).tolist())
    better = {site: value + 0.02 + 0.01 * generator.normal() for site, value in alone.items()}
    level = {site: value + 0.01 * generator.normal() for site, value in alone.items()}
    results = {
        r.method: r
        for r in compare_all("auroc", "individual", {"individual": alone, "b": better, "l": level})
    }
    assert set(results) == {"b", "l"}
    assert results["b"].p_holm == pytest.approx(2 * (results["b"].p or 0.0))
    assert (results["l"].p_holm or 0.0) > 0.05


def test_the_side_that_a_test_favours_is_that_of_its_ranks_where_the_median_gain_is_zero() -> None:
    reference = _sites([0.7] * 20)
    better_at_nine = _sites([0.71 + 0.001 * number for number in range(9)] + [0.7] * 11)
    for values, favoured in ((better_at_nine, "a"), (reference, "")):
        result = compare_pair("auroc", "a", "b", values, reference)
        assert result is not None
        assert (result.median_gain, result.favours) == (0.0, favoured)
    turned = compare_pair("auroc", "b", "a", reference, better_at_nine)
    assert turned is not None
    assert turned.favours == "a"


def test_only_the_methods_asked_for_are_corrected_and_the_least_p_follows_their_number() -> None:
    alone = _sites([0.6 + 0.01 * number for number in range(7)])
    by_method = {"individual": alone} | {
        name: {site: value + 0.01 + 0.1 * value for site, value in alone.items()} for name in "abc"
    }
    results = compare_all("auroc", "individual", by_method, corrected="ab")
    assert [result.p for result in results] == pytest.approx([2 / 2**7] * 3)
    assert [result.p_holm for result in results[:2]] == pytest.approx([2 * 2 / 2**7] * 2)
    assert [result.least_p_holm for result in results[:2]] == pytest.approx([2 * 2 / 2**7] * 2)
    assert (results[2].p_holm, results[2].can_tell) == (None, False)
    every = compare_all("auroc", "individual", by_method | dict.fromkeys("defg", alone))
    assert not any(result.can_tell for result in every)


def test_tied_sites_are_no_chance_for_a_test_to_succeed() -> None:
    """Twenty sites, of which five differ: no p below 0.05 is possible."""
    alone = _sites([0.7] * 20)
    for apart, possible in ((5, False), (6, True)):
        better = _sites([0.71 + 0.01 * number for number in range(apart)] + [0.7] * (20 - apart))
        (result,) = compare_all("auroc", "individual", {"individual": alone, "a": better})
        assert (result.sites, result.untied) == (20, apart)
        assert result.least_p_holm == pytest.approx(2 / 2**apart)
        assert result.can_tell is possible
    (same,) = compare_all("auroc", "individual", {"individual": alone, "a": alone})
    assert (same.least_p_holm, same.can_tell) == (1.0, False)
