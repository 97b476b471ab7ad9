"""The observed risk of right-censored rows by Kaplan and Meier, with Greenwood's variance.

Up to one horizon and for a whole group of rows: the observed side of a calibration curve. A risk is not
extrapolated: whoever asks looks first at how many rows are followed up to the horizon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmap.metrics.follow_up import FollowUp


@dataclass(frozen=True)
class ObservedRisk:
    """P(event by the horizon) in one group of rows."""

    risk: float
    variance: float  # Greenwood's
    events: int  # by the horizon
    followed: int  # rows seen event-free up to the horizon

    @property
    def effective_rows(self) -> float:
        """Rows of full follow-up that would give the same variance (Cutler and Ederer)."""
        if self.variance <= 0:
            return float(self.events + self.followed)
        return self.risk * (1 - self.risk) / self.variance


def observed_risk(rows: FollowUp, horizon: float) -> ObservedRisk:
    """Kaplan and Meier's risk of these rows at the horizon; 0 where no event has happened by then."""
    until = rows.until(horizon)
    followed = int((until.time > horizon).sum())
    times, deaths = np.unique(until.time[until.event], return_counts=True)
    if not times.size:
        return ObservedRisk(0.0, 0.0, 0, followed)
    ordered = np.sort(until.time)
    at_risk = until.time.size - np.searchsorted(ordered, times, side="left")
    survival = float(np.prod(1 - deaths / at_risk))
    left = at_risk - deaths
    if not left.all():  # everybody at risk had the event
        return ObservedRisk(1.0, 0.0, int(deaths.sum()), followed)
    variance = survival**2 * float(np.sum(deaths / (at_risk * left)))
    return ObservedRisk(1 - survival, variance, int(deaths.sum()), followed)
