"""The four threshold rules, and what happens where a rule has no answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedmap.errors import TrainingError
from fedmap.metrics import Threshold
from fedmap.metrics.thresholds import ThresholdRule, choose_threshold

RISK = np.array([0.9, 0.8, 0.6, 0.4, 0.3, 0.1])
TARGET = np.array([1, 1, 0, 1, 0, 0])


def test_a_fixed_threshold_is_taken_as_it_is() -> None:
    assert choose_threshold("fixed", 0.3, RISK, TARGET) == Threshold(0.3)
    assert choose_threshold("fixed", 0.3, np.array([]), np.array([])) == Threshold(0.3)


def test_prevalence_finds_the_best_cut_of_a_calibrated_and_of_a_shifted_score() -> None:
    """With p = P(y = 1), the best cut is the prevalence; a shift of the log-odds must move the cut along."""
    rng = np.random.default_rng(3)
    log_odds = rng.normal(-2.0, 1.5, 20_000)
    target = (rng.random(20_000) < 1 / (1 + np.exp(-log_odds))).astype(int)
    plain = choose_threshold("prevalence", None, 1 / (1 + np.exp(-log_odds)), target)
    shifted = choose_threshold("prevalence", None, 1 / (1 + np.exp(-(log_odds + 3.0))), target)
    assert plain.value == pytest.approx(target.mean(), abs=0.02)
    assert np.log(shifted.value / (1 - shifted.value)) == pytest.approx(
        np.log(plain.value / (1 - plain.value)) + 3.0, abs=0.05
    )


def test_prevalence_says_so_when_scores_run_the_wrong_way() -> None:
    chosen = choose_threshold("prevalence", None, np.tile(1 - RISK, 4), np.tile(TARGET, 4))
    assert chosen.value == 0.5
    assert chosen.note is not None


def test_prevalence_of_a_handful_of_cases_is_not_thrown_off_by_their_slope() -> None:
    """Four cases in fifty rows whose score happens to lie high: the cut stays near where it belongs."""
    rng = np.random.default_rng(5)
    risk = np.concatenate([[0.6, 0.5, 0.4, 0.3], rng.uniform(0.02, 0.1, 46)])
    target = np.concatenate([np.ones(4, int), np.zeros(46, int)])
    chosen = choose_threshold("prevalence", None, risk, target)
    assert 0.05 < chosen.value < 0.15


def test_youden_takes_the_highest_of_the_best_thresholds() -> None:
    # Sensitivity + specificity - 1 is 2/3 at 0.8 and at 0.4.
    assert choose_threshold("youden", None, RISK, TARGET) == Threshold(0.8)


PAIRS = st.lists(
    st.tuples(st.integers(0, 20).map(lambda step: step / 20), st.integers(0, 1)), min_size=2, max_size=40
)


@settings(max_examples=50)
@given(PAIRS, st.floats(0.01, 1.0))
def test_the_wanted_sensitivity_is_reached_and_no_higher_threshold_reaches_it(
    rows: list[tuple[float, int]], wanted: float
) -> None:
    risk, target = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    assume(0 < target.sum() < target.size)
    chosen = choose_threshold("sensitivity", wanted, risk, target)
    positives = risk[target == 1]
    assert chosen.note is None
    assert np.mean(positives >= chosen.value) >= wanted
    assert all(np.mean(positives >= other) < wanted for other in risk[risk > chosen.value])


@settings(max_examples=50)
@given(PAIRS)
def test_no_threshold_beats_the_one_of_youden(rows: list[tuple[float, int]]) -> None:
    risk, target = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    assume(0 < target.sum() < target.size)

    def youden(cut: float) -> float:
        return float(np.mean(risk[target == 1] >= cut) - np.mean(risk[target == 0] >= cut))

    best = max(youden(cut) for cut in risk)
    chosen = choose_threshold("youden", None, risk, target)
    if chosen.note is None:
        assert youden(chosen.value) == pytest.approx(best)
    else:
        assert best == pytest.approx(0.0)


@pytest.mark.parametrize("rule", ["prevalence", "youden", "sensitivity"])
@pytest.mark.parametrize("only_class", [0, 1])
def test_one_class_keeps_a_half_and_says_why(rule: ThresholdRule, only_class: int) -> None:
    chosen = choose_threshold(rule, 0.9, RISK, np.full(6, only_class))
    assert chosen == Threshold(0.5, "threshold 0.5 kept: one class only among 6 validation rows")


def test_no_validation_rows_keep_a_half_and_say_why() -> None:
    chosen = choose_threshold("youden", None, np.array([]), np.array([]))
    assert chosen == Threshold(0.5, "threshold 0.5 kept: no validation rows")


@pytest.mark.parametrize("risk", [np.full(6, 0.2), 1 - RISK])
def test_scores_no_better_than_chance_keep_a_half_and_say_why(
    risk: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> None:
    chosen = choose_threshold("youden", None, risk, TARGET)
    assert chosen == Threshold(
        0.5, "threshold 0.5 kept: no threshold does better than chance among 6 validation rows"
    )


@pytest.mark.parametrize(
    ("rule", "value"),
    [("fixed", None), ("fixed", 1.2), ("fixed", float("nan")), ("sensitivity", None), ("sensitivity", 0.0)],
)
def test_a_rule_without_its_value_is_refused(rule: ThresholdRule, value: float | None) -> None:
    with pytest.raises(TrainingError, match=f"rule {rule} has no value"):
        choose_threshold(rule, value, RISK, TARGET)


def test_scores_that_are_not_numbers_never_choose_a_threshold() -> None:
    with pytest.raises(TrainingError, match="not finite"):
        choose_threshold("youden", None, np.where(RISK == 0.4, np.nan, RISK), TARGET)
