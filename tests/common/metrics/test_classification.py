"""Binary and multiclass metrics against hand-computed values, scikit-learn, properties and bad input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from fedmap.errors import PlanError, TrainingError
from fedmap.metrics import Metric, SkippedMetric, metric_names
from fedmap.metrics.classification import binary_scores, multiclass_scores
from tests.common.metrics.measured import Results, metric, reason, value

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RISK = np.array([0.9, 0.8, 0.4, 0.35, 0.1])
TARGET = np.array([1, 0, 1, 0, 0])
NONE = np.array([])


def binary(risk: Floats, target: Ints, threshold: float = 0.5, only: Sequence[str] | None = None) -> Results:
    return binary_scores(risk, target, threshold).measure(only)


def several(risk: npt.NDArray[np.floating], target: Ints) -> Results:
    return multiclass_scores(risk, target).measure()


def test_hand_computed_binary_values() -> None:
    results = binary(RISK, TARGET)
    # Positives 0.9, 0.4 against negatives 0.8, 0.35, 0.1: five of six pairs are in order.
    assert value(results, "auroc") == pytest.approx(5 / 6)
    # Precision 1 at the first positive, 2/3 at the second, each adding half the recall.
    assert value(results, "auprc") == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert value(results, "sensitivity") == pytest.approx(1 / 2)
    assert value(results, "specificity") == pytest.approx(2 / 3)
    assert value(results, "balanced_accuracy") == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert value(results, "accuracy") == pytest.approx(3 / 5)
    assert value(results, "brier") == pytest.approx((0.01 + 0.64 + 0.36 + 0.35**2 + 0.01) / 5)
    assert value(results, "log_loss") == pytest.approx(-np.log([0.9, 0.2, 0.4, 0.65, 0.9]).mean())
    delta = value(results, "calibration_intercept")  # solves its score equation
    assert float(expit(logit(RISK) + delta).sum()) == pytest.approx(TARGET.sum())


def test_results_come_in_the_order_of_the_table_all_or_those_asked_for() -> None:
    assert tuple(result.name for result in binary(RISK, TARGET)) == metric_names("binary")
    asked = binary(RISK, TARGET, only=["brier", "auroc"])
    assert [result.name for result in asked] == ["auroc", "brier"]
    with pytest.raises(PlanError, match='"c_index" is no metric of a binary task'):
        binary(RISK, TARGET, only=["c_index"])


def test_a_probability_equal_to_the_threshold_is_positive() -> None:
    assert value(binary(np.array([0.5, 0.2]), np.array([1, 0])), "sensitivity") == 1.0


def test_a_perfect_predictor_is_perfect_and_has_no_finite_slope() -> None:
    results = binary(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]))
    for name in ("auroc", "auprc", "balanced_accuracy", "accuracy"):
        assert value(results, name) == 1.0
    assert "separates the classes" in reason(results, "calibration_slope")


def test_saturated_probabilities_are_measured() -> None:
    results = binary(np.array([0.0, 1.0, 1.0, 0.0, 1.0]), np.array([0, 1, 0, 0, 1]))
    assert not any(isinstance(result, SkippedMetric) for result in results if "slope" not in result.name)
    assert value(results, "brier") == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("stretched", "taken_away", "slope", "intercept"),
    [(1.0, 0.0, 1.0, 0.0), (2.0, 0.0, 0.5, None), (1.0, 0.7, 1.0, 0.7)],
    ids=["well calibrated", "overconfident", "too low"],
)
def test_slope_and_intercept_tell_how_a_predictor_is_off(
    rng: np.random.Generator, stretched: float, taken_away: float, slope: float, intercept: float | None
) -> None:
    score = rng.normal(-0.5, 1.2, 40_000)
    target = (rng.random(score.size) < expit(score)).astype(np.int64)
    results = binary(expit(stretched * score - taken_away), target)
    assert value(results, "calibration_slope") == pytest.approx(slope, abs=0.05)
    if intercept is not None:
        assert value(results, "calibration_intercept") == pytest.approx(intercept, abs=0.05)


def test_slope_equals_an_unpenalised_logistic_regression(rng: np.random.Generator) -> None:
    risk = rng.uniform(0.05, 0.95, 300)
    target = (rng.random(300) < risk).astype(np.int64)
    direct = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit(risk)[:, None], target)
    measured = value(binary(risk, target), "calibration_slope")
    assert measured == pytest.approx(float(direct.coef_[0, 0]), rel=1e-5)


SCORES = st.lists(
    st.tuples(st.integers(0, 20).map(lambda step: step / 20), st.integers(0, 1)), min_size=2, max_size=40
).map(lambda rows: (np.array([risk for risk, _ in rows]), np.array([target for _, target in rows])))


@settings(max_examples=50)
@given(SCORES, st.floats(0, 1))
def test_any_scores_give_a_value_in_range_or_a_reason(rows: tuple[Floats, Ints], threshold: float) -> None:
    risk, target = rows
    results = binary(risk, target, threshold)
    assert len(results) == len(metric_names("binary"))
    assert 0.0 <= value(results, "brier") <= 1.0
    for result in results:
        if isinstance(result, SkippedMetric):
            assert result.reason
        elif "calibration" not in result.name and result.name != "log_loss":
            assert 0.0 <= result.value <= 1.0
    assume(0 < target.sum() < target.size)
    mean = (value(results, "sensitivity") + value(results, "specificity")) / 2
    assert value(results, "balanced_accuracy") == pytest.approx(mean)
    mapped = binary(0.1 + 0.5 * risk**3, target, only=["auroc"])  # an increasing map changes no order
    assert value(mapped, "auroc") == pytest.approx(value(results, "auroc"))


@pytest.mark.parametrize("only_class", [0, 1])
def test_one_class_only_is_skipped_with_the_count_and_the_rest_measured(only_class: int) -> None:
    results = binary(np.linspace(0.1, 0.9, 14), np.full(14, only_class))
    for name in ("auroc", "auprc", "balanced_accuracy", "calibration_slope", "calibration_intercept"):
        assert reason(results, name) == "one class only among 14 test rows"
    absent, present = ("sensitivity", "specificity")[:: 1 if only_class == 0 else -1]
    assert reason(results, absent).endswith("among 14 test rows")
    assert 0.0 <= value(results, present) <= 1.0
    assert value(results, "accuracy") == 0.5
    assert value(results, "log_loss") > 0


def test_a_constant_score_has_chance_discrimination_and_no_slope() -> None:
    results = binary(np.full(6, 0.4), np.array([0, 1, 0, 1, 0, 0]))
    assert value(results, "auroc") == 0.5
    assert reason(results, "calibration_slope") == "the score is the same for all 6 test rows"
    assert value(results, "calibration_intercept") == pytest.approx(logit(1 / 3) - logit(0.4))


def test_an_empty_test_part_skips_every_metric() -> None:
    for results in (binary(NONE, NONE), several(np.empty((0, 3)), NONE)):
        assert {reason(results, result.name) for result in results} == {"no test rows"}


def test_a_single_row_is_measured_where_it_can_be() -> None:
    results = binary(np.array([0.8]), np.array([1]))
    assert value(results, "accuracy") == 1.0
    assert value(results, "brier") == pytest.approx(0.04)
    assert reason(results, "auroc") == "one class only among 1 test row"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_numbers_are_an_error_and_never_scored(bad: float) -> None:
    with pytest.raises(TrainingError, match="1 of 5 probabilities are not finite") as refused:
        binary(np.where(RISK == 0.4, bad, RISK), TARGET)
    assert "diverged" in refused.value.hint
    with pytest.raises(TrainingError, match="not finite"):
        several(np.array([[0.5, 0.5], [bad, 0.5]]), np.array([0, 1]))


@pytest.mark.parametrize(
    ("risk", "target", "threshold", "words"),
    [
        (RISK[:4], TARGET, 0.5, "shape"),
        (np.where(RISK == 0.4, 1.7, RISK), TARGET, 0.5, "1 of 5 probabilities lie outside 0 to 1"),
        (RISK, np.array([0, 1, 2, 1, 0]), 0.5, "1 of 5 outcomes are none of the 2 classes"),
        (RISK, TARGET, float("nan"), "threshold is not a probability"),
    ],
)
def test_predictions_that_do_not_fit_the_outcomes_are_refused_without_values(
    risk: Floats, target: Ints, threshold: float, words: str
) -> None:
    with pytest.raises(TrainingError, match=words):
        binary(risk, target, threshold)


def test_multiclass_auroc_is_the_mean_of_one_against_the_rest(rng: np.random.Generator) -> None:
    risk, target = rng.dirichlet(np.ones(3), 60), rng.integers(0, 3, 60)
    results = several(risk, target)
    each = [roc_auc_score(target == index, risk[:, index]) for index in range(3)]
    assert value(results, "auroc") == pytest.approx(np.mean(each))
    assert value(results, "auroc") == pytest.approx(roc_auc_score(target, risk, multi_class="ovr"))
    balanced = balanced_accuracy_score(target, risk.argmax(axis=1))
    assert value(results, "balanced_accuracy") == pytest.approx(balanced)


def test_two_classes_agree_with_the_binary_metrics(rng: np.random.Generator) -> None:
    risk, target = rng.random(50), rng.integers(0, 2, 50)
    by_class, plain = several(np.column_stack([1 - risk, risk]), target), binary(risk, target)
    for name in metric_names("multiclass"):
        assert value(by_class, name) == pytest.approx(value(plain, name))


def test_hand_computed_multiclass_values() -> None:
    risk = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    results = several(risk, np.array([0, 0, 1, 2]))
    assert value(results, "accuracy") == pytest.approx(3 / 4)
    assert value(results, "balanced_accuracy") == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert value(results, "log_loss") == pytest.approx(-np.log([0.7, 0.4, 0.8, 0.4]).mean())
    assert value(results, "auroc") == 1.0


def test_a_class_absent_from_the_test_rows_is_said() -> None:
    risk = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.1, 0.1, 0.8]])
    results, said = several(risk, np.array([0, 1, 1])), "1 of 3 classes absent among 3 test rows"
    assert reason(results, "auroc") == said
    assert metric(results, "balanced_accuracy") == Metric("balanced_accuracy", 0.75, said)
    one = several(risk, np.array([1, 1, 1]))
    assert reason(one, "balanced_accuracy") == "one class only among 3 test rows"


@pytest.mark.parametrize(
    ("risk", "words"),
    [
        ([[0.5, 0.5], [0.5, 0.4]], "1 of 2 rows the class probabilities do not sum"),
        ([0.5, 0.5], "one column per class"),
    ],
)
def test_what_are_no_class_probabilities_is_refused(risk: list[float], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        several(np.array(risk), np.array([0, 1]))


def test_float32_softmax_rounding_is_no_error(rng: np.random.Generator) -> None:
    weights = np.exp(rng.normal(size=(200, 5)).astype(np.float32))
    risk = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    assert all(isinstance(result, Metric) for result in several(risk, rng.integers(0, 5, 200)))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
