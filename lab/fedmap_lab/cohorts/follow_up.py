"""From hazards to landmark rows: one history per patient, seen again at each landmark.

Hazards add up from landmark to landmark until the patient's own threshold is reached, registration ends or
the patient dies. So the rows of one patient agree: an event seven years after one landmark is two years after
the next, and a row behind the event is flagged. The common baseline is set so that the wanted share of rows
has its event within the horizon.

It knows nothing of risk factors; ages only bound the landmarks and drive death from other causes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from fedmap_lab.cohorts.site_plan import FloatArray

HORIZON = 10.0
STEP = 5.0
"""Years between landmarks."""
LANDMARKS = 3
LAST_AGE = 85


@dataclass(frozen=True)
class FollowUp:
    """Per patient and landmark: is there a row, and what became of the patient after it. Years."""

    listed: NDArray[np.bool_]
    end_time: FloatArray
    event: NDArray[np.bool_]
    cvd_before: NDArray[np.bool_]
    death_before: NDArray[np.bool_]

    @property
    def usable(self) -> NDArray[np.bool_]:
        return self.listed & ~self.cvd_before & ~self.death_before & (self.end_time > 0)


def follow_patients(
    age: FloatArray, log_hazard: FloatArray, share: float, rng: np.random.Generator
) -> FollowUp:
    """Histories of patients with these ages and relative hazards, both (patients, landmarks)."""
    patients = len(log_hazard)
    starts = STEP * np.arange(LANDMARKS)  # years since the first landmark
    registered = 15.5 * rng.beta(2.8, 0.9, (patients, 1))
    registered[rng.random(patients) < 0.004] = 0.0  # left on the day of the landmark
    death = rng.exponential(150 * np.exp(-0.07 * (age[:, :1] - 60)))
    leaves = np.minimum(registered, death)
    complete = rng.choice(
        LANDMARKS, size=(patients, 1), p=[0.45, 0.40, 0.15]
    )  # last full set of measurements
    listed = (np.arange(LANDMARKS) <= complete) & (starts <= registered) & (age <= LAST_AGE)

    hazard = np.exp(log_hazard)
    at_start = np.cumsum(hazard * STEP, axis=1) - hazard * STEP  # gathered before each landmark
    at_end = _gathered(hazard, np.minimum(starts + HORIZON, leaves))
    threshold = rng.exponential(size=(patients, 1))
    at_risk = listed & (leaves > starts)
    baseline = _baseline(threshold, at_start, at_end, at_risk, share)

    event_time = _time_of(at_start, hazard, threshold / baseline)  # (patients, 1)
    cvd = event_time <= leaves
    cvd_before = cvd & (event_time <= starts)
    death_before = (death <= np.minimum(starts, registered)) & ~cvd_before
    closed = cvd_before | death_before
    end_time = np.where(closed, 0.0, np.maximum(np.minimum(event_time, leaves) - starts, 0.0))
    return FollowUp(
        listed=listed & (np.cumsum(closed, axis=1) <= 1),  # a closed history shows once more, then no longer
        end_time=np.where(end_time > 0, np.maximum(np.round(end_time, 3), 0.001), 0.0),
        event=cvd & ~closed,
        cvd_before=cvd_before,
        death_before=death_before,
    )


def _gathered(hazard: FloatArray, until: FloatArray) -> FloatArray:
    """Hazard gathered since the first landmark; the last landmark's goes on without end."""
    total = np.zeros_like(until)
    for j in range(LANDMARKS):
        longest = STEP if j < LANDMARKS - 1 else np.inf
        total += hazard[:, j : j + 1] * np.clip(until - j * STEP, 0.0, longest)
    return total


def _time_of(at_start: FloatArray, hazard: FloatArray, gathered: FloatArray) -> FloatArray:
    """When a patient has gathered that much, in years since the first landmark: (patients, 1)."""
    j = (gathered >= at_start).sum(axis=1, keepdims=True) - 1
    rest = gathered - np.take_along_axis(at_start, j, axis=1)
    return np.asarray(j * STEP + rest / np.take_along_axis(hazard, j, axis=1))


def _baseline(
    threshold: FloatArray, at_start: FloatArray, at_end: FloatArray, at_risk: NDArray[np.bool_], share: float
) -> float:
    """The factor on all hazards at which that share of the rows at risk has its event within the horizon."""
    limit = np.broadcast_to(threshold, at_risk.shape)[at_risk]
    start, end = at_start[at_risk], at_end[at_risk]

    def surplus(log_factor: float) -> float:
        factor = np.exp(log_factor)
        free = factor * start < limit  # no event before the landmark
        return float((free & (factor * end >= limit)).sum() - share * free.sum())

    return float(np.exp(optimize.bisect(surplus, -15.0, 3.0, xtol=1e-6)))
