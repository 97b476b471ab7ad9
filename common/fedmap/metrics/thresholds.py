"""Where a binary probability becomes a yes: the plan's threshold rule applied to validation data.

Meant for the validation part, never the test part. Where a rule has no answer, 0.5 is kept and the note says
why; a caller shows or records the note.

The thresholds of youden and sensitivity are the predicted probability of one validation row, as on any ROC
curve.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve

from fedmap.errors import TrainingError
from fedmap.metrics.calibration import log_odds, logit_intercept
from fedmap.metrics.inputs import AnyArray, Classes, Floats, checked_probabilities, class_indices
from fedmap.metrics.results import Threshold, row_count

ThresholdRule = Literal["fixed", "prevalence", "youden", "sensitivity"]

_DEFAULT = 0.5
_ROUNDING = 1e-12
"""Two thresholds whose indices differ by no more than this are equally good."""
_LEAST_FOR_SLOPE = 10
"""Rows of each outcome: the usual ten events for a coefficient."""


def choose_threshold(
    rule: ThresholdRule, value: float | None, probabilities: AnyArray, target: AnyArray
) -> Threshold:
    """Apply a rule to probabilities (rows,) and 0/1 outcomes (rows,).

    fixed        `value` itself; the data are not looked at
    prevalence   where the probability, recalibrated on these rows, equals the share of positives: there
                 sensitivity + specificity is largest, and it is far steadier than a search over thresholds
    youden       the threshold of highest sensitivity + specificity; of equals, the highest
    sensitivity  the highest threshold whose sensitivity is at least `value`
    """
    if rule == "fixed":
        return Threshold(_share(rule, value))
    wanted = _share(rule, value) if rule == "sensitivity" else None
    outcome = class_indices(target, 2)
    scores = checked_probabilities(probabilities, "probabilities", outcome.shape)
    if not outcome.size:
        return _kept("no validation rows")
    if np.unique(outcome).size < 2:
        return _kept(f"one class only among {row_count(outcome.size, 'validation')}")
    if rule == "prevalence":
        return _at_prevalence(scores, outcome)
    if wanted is None:
        return _youden(scores, outcome)
    return _at_sensitivity(scores, outcome, wanted)


def _at_prevalence(scores: Floats, outcome: Classes) -> Threshold:
    """Solve share = σ(a + b·logit(t)) for t, with a and b from a logistic regression of the outcome.

    Few rows of either outcome cannot carry a slope, and one that is wrong sends t far away: b is 1 then.
    """
    share = float(outcome.mean())
    if np.bincount(outcome, minlength=2).min() < _LEAST_FOR_SLOPE:
        return Threshold(float(expit(logit(share) - logit_intercept(scores, share))))
    score = log_odds(scores)
    # A trace of a penalty: complete separation must not send the slope to infinity.
    model = LogisticRegression(C=1e3, tol=1e-9, max_iter=1000).fit(score[:, None], outcome)
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    if slope <= 0:
        return _kept(
            f"higher scores do not mean more positives among {row_count(outcome.size, 'validation')}"
        )
    return Threshold(float(expit((logit(share) - intercept) / slope)))


def _youden(scores: Floats, outcome: Classes) -> Threshold:
    false_positive, sensitivity, cuts = roc_curve(outcome, scores)
    index = sensitivity - false_positive
    if index.max() <= _ROUNDING:  # also where all scores are equal
        return _kept(f"no threshold does better than chance among {row_count(outcome.size, 'validation')}")
    best = int(np.argmax(index >= index.max() - _ROUNDING))  # cuts fall, so the first is the highest
    return Threshold(float(cuts[best]))


def _at_sensitivity(scores: Floats, outcome: Classes, wanted: float) -> Threshold:
    _, sensitivity, cuts = roc_curve(outcome, scores, drop_intermediate=False)
    first = int(np.argmax(sensitivity >= wanted))  # cuts fall, so the first is the highest
    return Threshold(float(cuts[first]))


def _kept(why: str) -> Threshold:
    return Threshold(_DEFAULT, f"threshold {_DEFAULT} kept: {why}")


def _share(rule: ThresholdRule, value: float | None) -> float:
    lowest = 0.0 if rule == "fixed" else np.finfo(np.float64).tiny
    if value is None or not lowest <= value <= 1.0:
        raise TrainingError(
            f"the threshold rule {rule} has no value between 0 and 1",
            hint=f'write threshold = {{ rule = "{rule}", value = ... }} in the plan\'s [task] section',
        )
    return float(value)
