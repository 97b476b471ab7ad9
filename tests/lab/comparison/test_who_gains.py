"""Gain against individual performance, and the correlation that chance alone would give."""

from __future__ import annotations

import numpy as np
import pytest

from fedmap_lab.statistics.who_gains import gain_against_alone


def _sites(values: np.ndarray) -> dict[str, float]:
    return {f"site-{number:03}": float(value) for number, value in enumerate(values)}


def test_noise_alone_correlates_with_the_individual_value_but_not_by_oldham() -> None:
    generator = np.random.default_rng(3)
    alone, after = generator.normal(0.7, 0.05, 400), generator.normal(0.7, 0.05, 400)
    found = gain_against_alone("auroc", "noise", _sites(after), _sites(alone))
    assert (found.spearman or 0.0) < -0.6
    assert abs(found.oldham or 0.0) < 0.12


def test_weak_sites_that_really_catch_up_show_in_both_correlations() -> None:
    generator = np.random.default_rng(4)
    alone = generator.normal(0.7, 0.08, 200)
    after = 0.75 + 0.3 * (alone - 0.7) + generator.normal(0, 0.005, 200)
    found = gain_against_alone("auroc", "fedmap", _sites(after), _sites(alone))
    assert (found.spearman or 0.0) < -0.9
    assert (found.oldham or 0.0) < -0.9
    assert found.fit is not None
    assert found.fit.slope == pytest.approx(-0.7, abs=0.02)


def test_band_of_the_line_is_narrowest_in_the_middle_and_holds_the_line() -> None:
    generator = np.random.default_rng(5)
    alone = np.linspace(0.5, 0.9, 30)
    found = gain_against_alone("auroc", "m", _sites(alone + generator.normal(0, 0.02, 30)), _sites(alone))
    assert found.fit is not None
    width = np.array(found.fit.high) - np.array(found.fit.low)
    assert 15 < int(np.argmin(width)) < 35
    assert all(
        low <= line <= high
        for low, line, high in zip(found.fit.low, found.fit.line, found.fit.high, strict=True)
    )


def test_less_of_a_brier_score_is_a_gain_here_too() -> None:
    alone = np.linspace(0.1, 0.3, 12)
    found = gain_against_alone("brier", "m", _sites(alone * 0.5), _sites(alone))
    assert all(value > 0 for value in found.gain)
    assert found.spearman == pytest.approx(1.0)  # the worst sites (highest score) gain most


def test_few_sites_give_points_and_no_correlation() -> None:
    found = gain_against_alone("auroc", "m", {"a": 0.8, "b": 0.7}, {"a": 0.6, "b": 0.7})
    assert found.sites == ("a", "b")
    assert found.spearman is None
    assert "too few" in found.note


def test_equal_sites_have_nothing_to_correlate() -> None:
    found = gain_against_alone("auroc", "m", _sites(np.full(8, 0.8)), _sites(np.full(8, 0.7)))
    assert found.spearman is None
    assert found.fit is None
