"""Binary and multiclass metrics against hand-computed values, scikit-learn, properties and bad input."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from fedmap.errors import PlanError, TrainingError
from fedmap.metrics import Metric, MetricResult, SkippedMetric, metric_names
from fedmap.metrics.classification import classification_metrics, multiclass_metrics

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RISK = np.array([0.9, 0.8, 0.4, 0.35, 0.1])
TARGET = np.array([1, 0, 1, 0, 0])


def value(results: tuple[MetricResult, ...], name: str) -> float:
    found = next(result for result in results if result.name == name)
    assert isinstance(found, Metric), found
    return found.value


def reason(results: tuple[MetricResult, ...], name: str) -> str:
    found = next(result for result in results if result.name == name)
    assert isinstance(found, SkippedMetric), found
    return found.reason


def test_hand_computed_binary_values() -> None:
    results = classification_metrics(RISK, TARGET, 0.5)
    # Positives 0.9, 0.4 against negatives 0.8, 0.35, 0.1: five of six pairs are in order.
    assert value(results, "auroc") == pytest.approx(5 / 6)
    # Precision 1 at the first positive, 2/3 at the second, each adding half the recall.
    assert value(results, "auprc") == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert value(results, "sensitivity") == pytest.approx(1 / 2)
    assert value(results, "specificity") == pytest.approx(2 / 3)
    assert value(results, "balanced_accuracy") == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert value(results, "accuracy") == pytest.approx(3 / 5)
    assert value(results, "brier") == pytest.approx((0.01 + 0.64 + 0.36 + 0.35**2 + 0.01) / 5)
    expected = -np.log([0.9, 0.2, 0.4, 0.65, 0.9]).mean()
    assert value(results, "log_loss") == pytest.approx(expected)


def test_results_come_in_the_order_of_the_table() -> None:
    assert tuple(r.name for r in classification_metrics(RISK, TARGET, 0.5)) == metric_names("binary")


def test_only_the_metrics_asked_for_are_measured() -> None:
    results = classification_metrics(RISK, TARGET, 0.5, only=["brier", "auroc"])
    assert [result.name for result in results] == ["auroc", "brier"]
    with pytest.raises(PlanError, match='"c_index" is no metric of a binary task'):
        classification_metrics(RISK, TARGET, 0.5, only=["c_index"])


def test_a_probability_equal_to_the_threshold_is_positive() -> None:
    results = classification_metrics(np.array([0.5, 0.2]), np.array([1, 0]), 0.5)
    assert value(results, "sensitivity") == 1.0


def test_tied_scores_count_half_in_auroc() -> None:
    results = classification_metrics(np.array([0.3, 0.3, 0.3, 0.7]), np.array([0, 1, 0, 1]), 0.5)
    assert value(results, "auroc") == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)


def test_a_perfect_predictor_is_perfect_and_has_no_finite_slope() -> None:
    results = classification_metrics(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]), 0.5)
    for name in ("auroc", "auprc", "balanced_accuracy", "accuracy"):
        assert value(results, name) == 1.0
    assert "separates the classes" in reason(results, "calibration_slope")


def test_saturated_probabilities_are_measured() -> None:
    results = classification_metrics(np.array([0.0, 1.0, 1.0, 0.0, 1.0]), np.array([0, 1, 0, 0, 1]), 0.5)
    assert not any(isinstance(result, SkippedMetric) for result in results if "slope" not in result.name)
    assert value(results, "brier") == pytest.approx(0.2)


def test_a_random_predictor_is_near_chance(rng: np.random.Generator) -> None:
    target = (rng.random(20_000) < 0.3).astype(np.int64)
    results = classification_metrics(rng.random(20_000), target, 0.5)
    assert value(results, "auroc") == pytest.approx(0.5, abs=0.02)
    assert value(results, "auprc") == pytest.approx(0.3, abs=0.02)


def test_a_well_calibrated_predictor_has_slope_one_and_intercept_zero(rng: np.random.Generator) -> None:
    score = rng.normal(-1.0, 1.5, 40_000)
    target = (rng.random(score.size) < expit(score)).astype(np.int64)
    results = classification_metrics(expit(score), target, 0.5)
    assert value(results, "calibration_slope") == pytest.approx(1.0, abs=0.05)
    assert value(results, "calibration_intercept") == pytest.approx(0.0, abs=0.05)


def test_an_overconfident_predictor_has_a_slope_below_one(rng: np.random.Generator) -> None:
    score = rng.normal(0.0, 1.0, 40_000)
    target = (rng.random(score.size) < expit(score)).astype(np.int64)
    assert value(classification_metrics(expit(2 * score), target, 0.5), "calibration_slope") == pytest.approx(
        0.5, abs=0.03
    )


def test_the_intercept_is_the_shift_that_was_taken_away(rng: np.random.Generator) -> None:
    score = rng.normal(0.0, 1.0, 40_000)
    target = (rng.random(score.size) < expit(score)).astype(np.int64)
    too_low = classification_metrics(expit(score - 0.7), target, 0.5)
    assert value(too_low, "calibration_intercept") == pytest.approx(0.7, abs=0.05)


def test_slope_equals_an_unpenalised_logistic_regression(rng: np.random.Generator) -> None:
    risk = rng.uniform(0.05, 0.95, 300)
    target = (rng.random(300) < risk).astype(np.int64)
    direct = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit(risk)[:, None], target)
    measured = value(classification_metrics(risk, target, 0.5), "calibration_slope")
    assert measured == pytest.approx(float(direct.coef_[0, 0]), rel=1e-5)


def test_intercept_solves_its_score_equation() -> None:
    delta = value(classification_metrics(RISK, TARGET, 0.5), "calibration_intercept")
    assert float(expit(logit(RISK) + delta).sum()) == pytest.approx(TARGET.sum())


SCORES = st.lists(
    st.tuples(st.integers(0, 20).map(lambda step: step / 20), st.integers(0, 1)), min_size=2, max_size=40
)


def _arrays(rows: list[tuple[float, int]]) -> tuple[Floats, Ints]:
    return np.array([risk for risk, _ in rows]), np.array([target for _, target in rows])


@settings(max_examples=50, deadline=None)
@given(SCORES)
def test_auroc_does_not_change_under_an_increasing_map(rows: list[tuple[float, int]]) -> None:
    risk, target = _arrays(rows)
    assume(0 < target.sum() < target.size)
    before = value(classification_metrics(risk, target, 0.5, only=["auroc"]), "auroc")
    after = value(classification_metrics(0.1 + 0.5 * risk**3, target, 0.5, only=["auroc"]), "auroc")
    assert after == pytest.approx(before)


@settings(max_examples=50, deadline=None)
@given(SCORES, st.floats(0, 1))
def test_sensitivity_and_specificity_average_to_balanced_accuracy(
    rows: list[tuple[float, int]], threshold: float
) -> None:
    risk, target = _arrays(rows)
    assume(0 < target.sum() < target.size)
    results = classification_metrics(
        risk, target, threshold, only=["sensitivity", "specificity", "balanced_accuracy"]
    )
    mean = (value(results, "sensitivity") + value(results, "specificity")) / 2
    assert value(results, "balanced_accuracy") == pytest.approx(mean)


@settings(max_examples=50, deadline=None)
@given(SCORES)
def test_any_scores_give_a_value_in_range_or_a_reason(rows: list[tuple[float, int]]) -> None:
    risk, target = _arrays(rows)
    results = classification_metrics(risk, target, 0.5)
    assert len(results) == len(metric_names("binary"))
    assert 0.0 <= value(results, "brier") <= 1.0
    for result in results:
        if isinstance(result, SkippedMetric):
            assert result.reason
        elif "calibration" not in result.name and result.name != "log_loss":
            assert 0.0 <= result.value <= 1.0


@pytest.mark.parametrize("only_class", [0, 1])
def test_one_class_only_is_skipped_with_the_count_and_the_rest_measured(only_class: int) -> None:
    results = classification_metrics(np.linspace(0.1, 0.9, 14), np.full(14, only_class), 0.5)
    for name in ("auroc", "auprc", "balanced_accuracy", "calibration_slope", "calibration_intercept"):
        assert reason(results, name) == "one class only among 14 test rows"
    absent, present = ("sensitivity", "specificity")[:: 1 if only_class == 0 else -1]
    assert reason(results, absent).endswith("among 14 test rows")
    assert 0.0 <= value(results, present) <= 1.0
    assert value(results, "accuracy") == 0.5
    assert value(results, "log_loss") > 0


def test_a_constant_score_has_chance_discrimination_and_no_slope() -> None:
    results = classification_metrics(np.full(6, 0.4), np.array([0, 1, 0, 1, 0, 0]), 0.5)
    assert value(results, "auroc") == 0.5
    assert reason(results, "calibration_slope") == "the score is the same for all 6 test rows"
    assert value(results, "calibration_intercept") == pytest.approx(logit(1 / 3) - logit(0.4))


def test_an_empty_test_part_skips_every_metric() -> None:
    empty = np.array([])
    for results in (
        classification_metrics(empty, empty, 0.5),
        multiclass_metrics(np.empty((0, 3)), empty),
    ):
        assert {reason(results, result.name) for result in results} == {"no test rows"}


def test_a_single_row_is_measured_where_it_can_be() -> None:
    results = classification_metrics(np.array([0.8]), np.array([1]), 0.5)
    assert value(results, "accuracy") == 1.0
    assert value(results, "brier") == pytest.approx(0.04)
    assert reason(results, "auroc") == "one class only among 1 test row"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_numbers_are_an_error_and_never_scored(bad: float) -> None:
    with pytest.raises(TrainingError, match="1 of 5 probabilities are not finite") as refused:
        classification_metrics(np.where(RISK == 0.4, bad, RISK), TARGET, 0.5)
    assert "diverged" in refused.value.hint
    with pytest.raises(TrainingError, match="not finite"):
        multiclass_metrics(np.array([[0.5, 0.5], [bad, 0.5]]), np.array([0, 1]))


def test_predictions_that_do_not_fit_the_outcomes_are_refused_without_values() -> None:
    with pytest.raises(TrainingError, match="shape"):
        classification_metrics(RISK[:4], TARGET, 0.5)
    with pytest.raises(TrainingError, match="1 of 5 probabilities lie outside 0 to 1"):
        classification_metrics(np.where(RISK == 0.4, 1.7, RISK), TARGET, 0.5)
    with pytest.raises(TrainingError, match="1 of 5 outcomes are none of the 2 classes"):
        classification_metrics(RISK, np.array([0, 1, 2, 1, 0]), 0.5)
    with pytest.raises(TrainingError, match="threshold is not a probability"):
        classification_metrics(RISK, TARGET, float("nan"))


def test_multiclass_auroc_is_the_mean_of_one_against_the_rest(rng: np.random.Generator) -> None:
    risk = rng.dirichlet(np.ones(3), 60)
    target = rng.integers(0, 3, 60)
    results = multiclass_metrics(risk, target)
    each = [roc_auc_score(target == index, risk[:, index]) for index in range(3)]
    assert value(results, "auroc") == pytest.approx(np.mean(each))
    assert value(results, "auroc") == pytest.approx(roc_auc_score(target, risk, multi_class="ovr"))
    assert value(results, "balanced_accuracy") == pytest.approx(
        balanced_accuracy_score(target, risk.argmax(axis=1))
    )


def test_two_classes_agree_with_the_binary_metrics(rng: np.random.Generator) -> None:
    risk = rng.random(50)
    target = rng.integers(0, 2, 50)
    several = multiclass_metrics(np.column_stack([1 - risk, risk]), target)
    binary = classification_metrics(risk, target, 0.5)
    for name in metric_names("multiclass"):
        assert value(several, name) == pytest.approx(value(binary, name))


def test_hand_computed_multiclass_values() -> None:
    risk = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    results = multiclass_metrics(risk, np.array([0, 0, 1, 2]))
    assert value(results, "accuracy") == pytest.approx(3 / 4)
    assert value(results, "balanced_accuracy") == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert value(results, "log_loss") == pytest.approx(-np.log([0.7, 0.4, 0.8, 0.4]).mean())
    assert value(results, "auroc") == 1.0


def test_a_class_absent_from_the_test_rows_is_said() -> None:
    risk = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.1, 0.1, 0.8]])
    results = multiclass_metrics(risk, np.array([0, 1, 1]))
    assert reason(results, "auroc") == "1 of 3 classes absent among 3 test rows"
    balanced = next(result for result in results if result.name == "balanced_accuracy")
    assert balanced == Metric("balanced_accuracy", 0.75, "1 of 3 classes absent among 3 test rows")
    one = multiclass_metrics(risk, np.array([1, 1, 1]))
    assert reason(one, "balanced_accuracy") == "one class only among 3 test rows"


def test_class_probabilities_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(TrainingError, match="1 of 2 rows the class probabilities do not sum"):
        multiclass_metrics(np.array([[0.5, 0.5], [0.5, 0.4]]), np.array([0, 1]))
    with pytest.raises(TrainingError, match="one column per class"):
        multiclass_metrics(np.array([0.5, 0.5]), np.array([0, 1]))


def test_float32_softmax_rounding_is_no_error(rng: np.random.Generator) -> None:
    logits = rng.normal(size=(200, 5)).astype(np.float32)
    weights = np.exp(logits)
    risk = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    results = multiclass_metrics(risk, rng.integers(0, 5, 200))
    assert all(isinstance(result, Metric) for result in results)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
