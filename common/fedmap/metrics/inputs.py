"""The door to the metrics: scores and outcomes checked before anything is measured.

A score that is not a number is an error, not a skipped metric: it means that the model diverged, and
ranking such scores would give a value that looks like any other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedmap.errors import TrainingError

AnyArray = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Classes = npt.NDArray[np.int64]

_ROUNDING = 1e-5
"""float32 rounding of a sum of class probabilities; more than this is not a probability."""


def finite_scores(scores: AnyArray, what: str, shape: tuple[int, ...]) -> Floats:
    """Scores as float64, all finite, of the expected shape."""
    array = np.asarray(scores, dtype=np.float64)
    if array.shape != shape:
        raise _unfit(f"the {what} have the shape {array.shape}, the outcomes need {shape}")
    not_finite = int(np.count_nonzero(~np.isfinite(array)))
    if not_finite:
        raise TrainingError(
            f"{not_finite} of {array.size} {what} are not finite numbers; nothing was scored",
            hint="the model diverged: lower the learning rate, and check the features for extreme values",
        )
    return array


def checked_probabilities(scores: AnyArray, what: str, shape: tuple[int, ...]) -> Floats:
    """Finite scores between 0 and 1."""
    array = finite_scores(scores, what, shape)
    outside = int(np.count_nonzero((array < -_ROUNDING) | (array > 1.0 + _ROUNDING)))
    if outside:
        raise _unfit(f"{outside} of {array.size} {what} lie outside 0 to 1")
    return np.clip(array, 0.0, 1.0)


def class_probabilities(scores: AnyArray, rows: int) -> Floats:
    """Rows of probabilities (rows, classes), made to sum to one in float64."""
    classes = scores.shape[1] if scores.ndim == 2 else 0
    if classes < 2:
        raise _unfit("class probabilities need one column per class, two or more")
    array = checked_probabilities(scores, "probabilities", (rows, classes))
    sums = array.sum(axis=1, keepdims=True)
    wrong = int(np.count_nonzero(np.abs(sums - 1.0) > classes * _ROUNDING))
    if wrong:
        raise _unfit(f"in {wrong} of {rows} rows the class probabilities do not sum to one")
    return np.asarray(array / sums, dtype=np.float64)


def class_indices(target: AnyArray, classes: int) -> Classes:
    """Outcomes as class indices 0 ... classes-1."""
    array = np.asarray(target)
    if array.ndim != 1:
        raise _unfit("the outcomes must be one class index per row")
    unknown = int(np.count_nonzero(~np.isin(array, np.arange(classes))))
    if unknown:
        raise _unfit(f"{unknown} of {array.size} outcomes are none of the {classes} classes")
    return array.astype(np.int64)


def follow_up_times(time: AnyArray, what: str) -> Floats:
    """Follow-up times, finite and not negative."""
    array = np.asarray(time, dtype=np.float64)
    if array.ndim != 1:
        raise _unfit(f"the {what} must be one time per row")
    wrong = int(np.count_nonzero(~(np.isfinite(array) & (array >= 0))))
    if wrong:
        raise _unfit(f"{wrong} of {array.size} {what} are negative or not finite")
    return array


def event_flags(event: AnyArray, rows: int) -> Bools:
    """Whether the event happened, one flag per row."""
    array = np.asarray(event)
    if array.shape != (rows,):
        raise _unfit(f"there are {array.size} event flags for {rows} follow-up times")
    return class_indices(array, 2).astype(np.bool_)


def _unfit(problem: str) -> TrainingError:
    return TrainingError(
        f"these predictions cannot be scored: {problem}",
        hint="score the model with the study plan it was trained under, on data loaded with that plan",
    )
