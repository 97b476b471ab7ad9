"""The table of metrics: complete, light to import, and honest about direction."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedmap.errors import PlanError, TrainingError
from fedmap.metrics import (
    METRICS,
    Metric,
    classification,
    higher_is_better,
    metric_label,
    metric_names,
    primary_metric_names,
    shortfall,
    survival,
)
from fedmap.metrics.names import chosen_metric_names
from fedmap.outcomes import OutcomeKind

KINDS: tuple[OutcomeKind, ...] = ("binary", "multiclass", "cox")


def test_every_metric_of_the_table_can_be_measured() -> None:
    assert set(classification.BINARY) == set(metric_names("binary"))
    assert set(classification.MULTICLASS) == set(metric_names("multiclass"))
    assert set(survival.SURVIVAL) == set(metric_names("cox"))
    for kind in KINDS:
        calibration = {"calibration_slope", "calibration_intercept"}
        assert set(primary_metric_names(kind)) == set(metric_names(kind)) - calibration


def test_direction_of_ranking_metrics() -> None:
    assert higher_is_better("auroc")
    assert higher_is_better("c_index_ipcw")
    assert not higher_is_better("brier")
    assert not higher_is_better("log_loss")


@pytest.mark.parametrize("name", ["calibration_slope", "calibration_intercept"])
def test_calibration_has_no_direction_and_says_so(name: str) -> None:
    with pytest.raises(PlanError, match="has a target"):
        higher_is_better(name)


def test_less_shortfall_is_better_for_every_metric() -> None:
    assert shortfall("auroc", 0.9) < shortfall("auroc", 0.8)
    assert shortfall("brier", 0.1) < shortfall("brier", 0.2)
    assert shortfall("calibration_slope", 1.1) < shortfall("calibration_slope", 0.7)
    assert shortfall("calibration_slope", 0.9) < shortfall("calibration_slope", 1.3)
    assert shortfall("calibration_intercept", -0.1) < shortfall("calibration_intercept", 0.2)


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match='unknown metric "aurok"') as refused:
        metric_label("aurok")
    assert "auroc" in refused.value.hint


def test_metrics_of_another_task_are_refused_all_at_once() -> None:
    with pytest.raises(PlanError) as refused:
        chosen_metric_names("cox", ["auroc", "c_index", "accuracy"])
    assert len(refused.value.problems) == 2


def test_chosen_metrics_keep_the_order_of_the_table() -> None:
    assert chosen_metric_names("cox", ["brier", "c_index"]) == ("c_index", "brier")


def test_labels_are_for_people() -> None:
    assert metric_label("c_index") == "C-index (Harrell)"
    assert all(metric.label[0].isupper() for metric in METRICS.values())


def test_a_metric_is_never_nan() -> None:
    with pytest.raises(TrainingError, match="auroc is not a finite number"):
        Metric("auroc", float("nan"))


def test_checking_a_plan_does_not_load_scikit_learn() -> None:
    script = (
        "import sys, fedmap.metrics; sys.exit(any(m in sys.modules for m in ('sklearn', 'sksurv', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
