"""Survival metrics against hand-computed values, lifelines, simulations, properties and bad input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index

from fedmap.errors import TrainingError
from fedmap.metrics import Metric, SkippedMetric, metric_names
from fedmap.metrics.survival import survival_scores
from tests.common.metrics.measured import Results, metric, reason, value

Floats = npt.NDArray[np.float64]

GRID = np.arange(1.0, 11.0)
HORIZON = 10.0


class Cohort:
    """Exponential survival with known risks: hazard 0.1 exp(x), some censoring, all follow-up ends at 10."""

    def __init__(self, rows: int, seed: int, censoring: float = 30.0) -> None:
        rng = np.random.default_rng(seed)
        self.log_hazard = rng.normal(-0.5, 1.0, rows)
        happens = rng.exponential(1 / (0.1 * np.exp(self.log_hazard)))
        leaves = np.minimum(rng.exponential(censoring, rows), HORIZON)
        self.time = np.minimum(happens, leaves)
        self.event = happens <= leaves

    def risk(self, scale: float = 1.0, shift: float = 0.0) -> Floats:
        hazard = 0.1 * np.exp(scale * self.log_hazard + shift)
        return np.asarray(-np.expm1(-np.outer(hazard, GRID)))


def score(
    test: Cohort, train: Cohort, risk: Floats | None = None, only: Sequence[str] | None = None
) -> Results:
    risk = test.risk() if risk is None else risk
    seen = (test.time, test.event, train.time, train.event)
    return survival_scores(test.log_hazard, risk, GRID, HORIZON, *seen).measure(only)


def small(
    log_hazard: Sequence[float],
    time: Sequence[float],
    event: Sequence[int],
    *,
    risk: Floats | None = None,
    grid: Sequence[float] = (2.0, 4.0),
    train: tuple[Sequence[float], Sequence[int]] | None = None,
) -> Results:
    """A few rows by hand; censoring from the same rows unless training rows are given."""
    train_time, train_event = (time, event) if train is None else train
    return survival_scores(
        np.array(log_hazard, dtype=np.float64),
        np.full((len(time), len(grid)), 0.5) if risk is None else risk,
        np.array(grid),
        grid[-1],
        np.array(time, dtype=np.float64),
        np.array(event, dtype=np.bool_),
        np.array(train_time, dtype=np.float64),
        np.array(train_event, dtype=np.bool_),
    ).measure()


def test_hand_computed_brier_without_censoring() -> None:
    # By time 4 the first two rows have had their event, the last two are followed beyond.
    risk = np.array([[0.5, 0.9], [0.4, 0.8], [0.2, 0.4], [0.1, 0.3]])
    results = small([3, 2, 1, 0], [1, 3, 6, 7], [1, 1, 1, 1], risk=risk)
    at_4 = (0.1**2 + 0.2**2 + 0.4**2 + 0.3**2) / 4
    at_2 = (0.5**2 + 0.4**2 + 0.2**2 + 0.1**2) / 4
    assert value(results, "brier") == pytest.approx(at_4)
    assert value(results, "integrated_brier") == pytest.approx((at_2 + at_4) / 2)


def test_hand_computed_brier_with_censoring() -> None:
    # Censoring survival drops to 2/3 at time 2 (one of three at risk leaves), so later weights are 3/2.
    risk = np.array([[0.5, 0.9], [0.5, 0.5], [0.2, 0.4], [0.1, 0.3]])
    results = small([3, 2, 1, 0], [1, 2, 3, 7], [1, 0, 1, 0], risk=risk)
    expected = (0.1**2 * 1 + 0.6**2 * 1.5 + 0.3**2 * 1.5) / 4
    assert value(results, "brier") == pytest.approx(expected)


def test_rows_censored_exactly_at_the_horizon_are_event_free_there() -> None:
    risk = np.array([[0.5, 0.9], [0.4, 0.8], [0.2, 0.4], [0.1, 0.3]])
    longer = small([3, 2, 1, 0], [1, 3, 9, 9], [1, 1, 0, 0], risk=risk)
    stopped = small([3, 2, 1, 0], [1, 3, 4, 4], [1, 1, 0, 0], risk=risk)
    for name in metric_names("cox"):
        if name != "calibration_slope":
            assert value(stopped, name) == pytest.approx(value(longer, name)), name


def test_an_event_exactly_at_the_horizon_is_an_event_by_the_horizon() -> None:
    risk = np.array([[0.5, 0.9], [0.4, 0.8], [0.2, 0.4]])
    results = small([3, 2, 1], [1, 4, 4], [1, 1, 0], risk=risk)
    assert value(results, "brier") == pytest.approx((0.1**2 + 0.2**2 + 0.4**2) / 3)


@pytest.mark.parametrize("seed", range(5))
def test_c_index_agrees_with_lifelines_on_tied_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_hazard = rng.integers(0, 6, 80).astype(np.float64)
    time = rng.integers(1, 12, 80).astype(np.float64)
    event = rng.random(80) < 0.5
    results = small(log_hazard.tolist(), time.tolist(), event.astype(int).tolist())
    assert value(results, "c_index") == pytest.approx(concordance_index(time, -log_hazard, event))


def test_uno_equals_harrell_when_nobody_is_censored_before_the_horizon() -> None:
    cohort = Cohort(300, 1, censoring=1e9)
    results = score(cohort, cohort, only=["c_index", "c_index_ipcw"])
    assert value(results, "c_index_ipcw") == pytest.approx(value(results, "c_index"))


def test_perfect_and_reversed_scores() -> None:
    time, event = [1, 2, 3, 5, 6], [1, 1, 1, 0, 0]
    perfect, reverse = small([5, 4, 3, 2, 1], time, event), small([1, 2, 3, 4, 5], time, event)
    for name in ("c_index", "c_index_ipcw"):
        assert value(perfect, name) == 1.0
        assert value(reverse, name) == 0.0
    assert "no finite slope" in reason(perfect, "calibration_slope")
    assert "no finite slope" in reason(reverse, "calibration_slope")


def test_the_true_model_is_well_calibrated_and_beats_the_mean_risk() -> None:
    test, train = Cohort(4000, 3), Cohort(4000, 4)
    results = score(test, train)
    assert value(results, "calibration_slope") == pytest.approx(1.0, abs=0.08)
    assert value(results, "calibration_intercept") == pytest.approx(0.0, abs=0.08)
    flat = score(
        test, train, risk=np.tile(test.risk().mean(axis=0), (4000, 1)), only=["brier", "integrated_brier"]
    )
    assert value(results, "brier") < value(flat, "brier") < 0.26
    assert value(results, "integrated_brier") < value(flat, "integrated_brier")


def test_the_intercept_makes_the_mean_risk_equal_lifelines_kaplan_meier() -> None:
    test = Cohort(200, 8)
    risk = test.risk(shift=0.4)
    delta = value(score(test, test, risk=risk, only=["calibration_intercept"]), "calibration_intercept")
    shifted = 1 - (1 - risk[:, -1]) ** np.exp(delta)
    observed = 1 - KaplanMeierFitter().fit(test.time, test.event).predict(HORIZON)
    assert float(shifted.mean()) == pytest.approx(float(observed))


def test_a_score_far_from_unit_scale_keeps_its_slope() -> None:
    test = Cohort(400, 9)
    plain = value(score(test, test, only=["calibration_slope"]), "calibration_slope")
    risk = test.risk()
    test.log_hazard = 1000 * test.log_hazard + 5000
    assert value(score(test, test, risk, only=["calibration_slope"]), "calibration_slope") == pytest.approx(
        plain / 1000
    )


ROWS = st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 12), st.booleans()), min_size=1, max_size=25)


@settings(max_examples=60)
@given(ROWS, ROWS)
def test_any_follow_up_gives_a_value_or_a_reason(
    rows: list[tuple[int, int, bool]], train: list[tuple[int, int, bool]]
) -> None:
    results = small(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        grid=(2.0, 4.0, 8.0),
        train=([row[1] for row in train], [row[2] for row in train]),
    )
    assert tuple(result.name for result in results) == metric_names("cox")
    for result in results:
        if isinstance(result, SkippedMetric):
            assert result.reason
        elif result.name.startswith("c_index"):
            assert 0.0 <= result.value <= 1.0


@settings(max_examples=60)
@given(ROWS)
def test_brier_stays_between_zero_and_one_without_censoring(rows: list[tuple[int, int, bool]]) -> None:
    times = [row[1] for row in rows]
    risk = np.linspace(0, 1, len(rows))[:, None] * np.array([0.5, 1.0])
    for result in small([0.0] * len(rows), times, [1] * len(rows), risk=risk):
        if isinstance(result, Metric) and "brier" in result.name:
            assert 0.0 <= result.value <= 1.0


def test_the_c_index_does_not_change_under_an_increasing_map() -> None:
    cohort = Cohort(100, 10)
    before = score(cohort, cohort, only=["c_index", "c_index_ipcw"])
    cohort.log_hazard = 1e-9 * np.exp(cohort.log_hazard)
    after = score(cohort, cohort, only=["c_index", "c_index_ipcw"])
    assert [value(after, name) for name in ("c_index", "c_index_ipcw")] == pytest.approx(
        [value(before, name) for name in ("c_index", "c_index_ipcw")]
    )


def test_no_events_skip_every_metric_with_the_count() -> None:
    results = small([1, 2, 3], [5, 6, 7], [0, 0, 0], train=([1, 5, 6], [1, 0, 0]))
    for result in results:
        assert reason(results, result.name).endswith("among 3 test rows")


def test_events_after_the_horizon_only_leave_harrell() -> None:
    results = small([3, 2, 1], [5, 6, 7], [1, 1, 0], train=([1, 5, 6], [1, 0, 0]))
    assert value(results, "c_index") == 1.0
    assert reason(results, "brier") == "no event within the time measured among 3 test rows"
    assert "no event" in reason(results, "c_index_ipcw")


def test_a_constant_score_is_chance_and_has_no_slope() -> None:
    results = small([1, 1, 1, 1], [1, 2, 3, 5], [1, 0, 1, 0])
    assert value(results, "c_index") == 0.5
    assert value(results, "c_index_ipcw") == 0.5
    assert reason(results, "calibration_slope") == "the score is the same for all 4 test rows"


@pytest.mark.parametrize("event", [0, 1])
def test_a_single_row_skips_every_metric(event: int) -> None:
    results = small([1], [3], [event], train=([1, 3, 6], [1, 0, 0]))
    assert all(isinstance(result, SkippedMetric) for result in results)


def test_an_empty_test_part_skips_every_metric() -> None:
    results = small([], [], [], train=([1, 3, 6], [1, 0, 0]))
    assert {reason(results, name) for name in metric_names("cox")} == {"no test rows"}


def test_events_tied_at_the_last_time_are_no_comparable_pair() -> None:
    results = small([1, 2], [3, 3], [1, 1], train=([1, 3, 6], [1, 0, 0]))
    assert reason(results, "c_index") == "no comparable pair among 2 test rows"
    assert reason(results, "c_index_ipcw") == "no comparable pair among 2 test rows"


def test_no_training_rows_leave_what_needs_no_censoring_weights() -> None:
    results = small([2, 3, 0, 1], [1, 2, 3, 5], [1, 0, 1, 0], train=([], []))
    assert value(results, "c_index") == 0.5
    value(results, "calibration_slope")
    value(results, "calibration_intercept")
    for name in ("c_index_ipcw", "brier"):
        assert reason(results, name) == "no event within the time measured among 0 training rows"
    assert (
        reason(results, "integrated_brier")
        == "test and training follow-up cover only 0 of 2 grid times, two are needed"
    )


@pytest.mark.parametrize("last_event", [0, 1])
def test_training_follow_up_that_ends_before_the_horizon_is_never_extrapolated(last_event: int) -> None:
    test, train = Cohort(60, 11), Cohort(60, 12)
    train_time, train_event = np.minimum(train.time, 6.5), train.event & (train.time < 6.5)
    train_time = np.append(train_time, 6.7)
    train_event = np.append(train_event, bool(last_event))
    train.time, train.event = train_time, train_event
    results = score(test, train)
    assert "so censoring is unknown" in reason(results, "brier")
    assert metric(results, "integrated_brier").note == "integrated over only 6 of 10 grid times"
    assert (
        metric(results, "c_index_ipcw").note
        == "measured up to the end of training follow-up, before the horizon"
    )
    assert 0.0 < value(results, "integrated_brier") < 0.3


def test_test_rows_not_followed_to_the_horizon_skip_what_is_measured_there() -> None:
    results = small([2, 3, 0, 1], [1, 2.5, 3, 3.5], [1, 0, 1, 0], train=([1, 3, 9, 9], [1, 0, 1, 0]))
    for name in ("brier", "calibration_intercept"):
        assert reason(results, name) == "none of 4 test rows is followed up to the horizon"
    value(results, "c_index_ipcw")


def test_without_a_baseline_hazard_only_absolute_risks_are_skipped() -> None:
    cohort = Cohort(80, 13)
    seen = (cohort.time, cohort.event, cohort.time, cohort.event)
    results = survival_scores(cohort.log_hazard, None, GRID, HORIZON, *seen).measure()
    for name in ("brier", "integrated_brier", "calibration_intercept"):
        assert reason(results, name) == "no baseline hazard, so no absolute risks"
    for name in ("c_index", "c_index_ipcw", "calibration_slope"):
        value(results, name)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_numbers_are_an_error_and_never_scored(bad: float) -> None:
    with pytest.raises(TrainingError, match="1 of 3 log-hazards are not finite"):
        small([1, bad, 2], [1, 2, 3], [1, 0, 1])
    with pytest.raises(TrainingError, match="6 of 6 risks are not finite"):
        small([1, 2, 3], [1, 2, 3], [1, 0, 1], risk=np.full((3, 2), bad))


def test_inputs_that_do_not_fit_together_are_refused_without_values() -> None:
    with pytest.raises(TrainingError, match="1 of 3 test follow-up times are negative"):
        small([1, 2, 3], [1, -2, 3], [1, 0, 1], train=([1, 9], [1, 0]))
    with pytest.raises(TrainingError, match="event flags"):
        small([1, 2, 3], [1, 2, 3], [1, 0])
    with pytest.raises(TrainingError, match="shape"):
        small([1, 2, 3], [1, 2, 3], [1, 0, 1], risk=np.full((3, 5), 0.5))
    with pytest.raises(TrainingError, match="grid"):
        small([1, 2, 3], [1, 2, 3], [1, 0, 1], grid=(4.0, 2.0))
    with pytest.raises(TrainingError, match="grid"):
        survival_scores(np.zeros(2), None, GRID, 12.0, np.ones(2), np.ones(2), np.ones(2), np.ones(2))
