"""The shift check keeps its promise on synthetic practices and donors: few false alarms, few misses.

A quick, seeded part of `python -m fedmap_lab.bench.shift_calibration`.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from fedmap_lab.bench.shift_calibration import Tally, calibrate, draw_sites, power_alone, show


def test_clinics_like_the_federation_pass_and_a_shift_of_one_deviation_is_found() -> None:
    practices = [draw_sites("cprd", seed=0, clinics=100, most_sites=60)]
    result = calibrate("cprd", practices, sites=60, federations=1, clinics=100, inputs=1)
    assert list(result.found) == ["landmark_age"]  # the strongest association with the outcome
    assert result.as_planned.share <= 0.05
    assert result.of_300.share <= 0.05
    assert result.found["landmark_age"].share >= 0.95


def test_three_donor_populations_are_enough_for_the_blood_count() -> None:
    centres = [draw_sites("interval", seed, clinics=1) for seed in range(8)]
    result = calibrate("interval", centres, sites=3, federations=8, clinics=1, inputs=3)
    assert result.as_planned.hits == 0
    assert all(tally.share >= 0.95 for tally in result.found.values())
    assert {"MCH_pg", "HGB_g_L"} <= set(result.found)
    console = Console(record=True, width=140, quiet=True)
    show(console, [result])


def test_intervals_are_those_of_clopper_and_pearson() -> None:
    assert list(Tally(2, 40).interval) == pytest.approx([0.0061, 0.1692], abs=1e-4)
    assert list(Tally(0, 40).interval) == pytest.approx([0.0, 0.0881], abs=1e-4)
    assert Tally(40, 40).interval[1] == 1.0


def test_one_input_alone_tells_little_where_few_sites_differ_much() -> None:
    assert power_alone(3, between=0.4, within=0.9) < 0.3
    assert power_alone(185, between=0.1, within=1.0) > 0.99
