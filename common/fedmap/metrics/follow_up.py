"""Right-censored follow-up, how well a score orders and scales it up to a limit, and the risk it shows.

Holds the two rules that every survival metric shares: what "followed up to the horizon" means, and which
data cannot be compared or fitted at all. A risk is never extrapolated: whoever asks for it looks first at how
many rows are followed up to the horizon.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import ConvergenceWarning
from sksurv.exceptions import NoComparablePairException
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.metrics import concordance_index_censored
from sksurv.util import Surv

from fedmap.metrics.calibration import standardised
from fedmap.metrics.inputs import AnyArray, Bools, Floats, event_flags, follow_up_times
from fedmap.metrics.results import NotMeasurableError, row_count

_BEYOND = 2.0
"""Rows followed past a limit are put at this many times the limit; any factor above 1 does the same."""


@dataclass(frozen=True)
class FollowUp:
    """Time to the event or to the end of observation, per row."""

    time: Floats
    event: Bools

    @classmethod
    def checked(cls, time: AnyArray, event: AnyArray, what: str) -> FollowUp:
        """Refuse times and flags that cannot be follow-up."""
        times = follow_up_times(time, what)
        return cls(times, event_flags(event, times.size))

    def until(self, limit: float) -> FollowUp:
        """Follow-up stopped at a limit.

        Rows event-free at the limit are moved past it: also those censored exactly at it, as administrative
        censoring at the horizon leaves them, for they were seen to have had no event up to then.
        """
        past = (self.time > limit) | ((self.time == limit) & ~self.event)
        return FollowUp(np.where(past, _BEYOND * limit, self.time), self.event & ~past)

    def reaches(self, limit: float) -> bool:
        """Whether any row is still followed, event-free, at the limit."""
        return bool(np.any(self.until(limit).time > limit))

    def structured(self) -> npt.NDArray[Any]:
        """The array of (event, time) that scikit-survival takes."""
        return np.asarray(Surv.from_arrays(self.event, self.time))


@dataclass(frozen=True)
class Concordance:
    """Harrell's C and the pairs behind it."""

    index: float
    concordant: int
    discordant: int


def concordance(follow_up: FollowUp, score: Floats) -> Concordance:
    """Harrell's C. Ties are exact equality, so that an increasing map of the score leaves it unchanged."""
    rows = row_count(follow_up.time.size)
    if not follow_up.event.any():
        raise NotMeasurableError(f"no event among {rows}")
    if follow_up.time.size < 2:
        raise NotMeasurableError(f"no comparable pair among {rows}")
    try:
        with np.errstate(invalid="ignore"):  # 0/0 where all events are tied at the last time
            index, concordant, discordant, _, _ = concordance_index_censored(
                follow_up.event, follow_up.time, score, tied_tol=0.0
            )
    except NoComparablePairException:
        index, concordant, discordant = np.nan, 0, 0
    if not np.isfinite(index):
        raise NotMeasurableError(f"no comparable pair among {rows}")
    return Concordance(float(index), int(concordant), int(discordant))


def cox_slope(follow_up: FollowUp, log_hazard: Floats) -> float:
    """The coefficient of the log-hazard in an unpenalised Cox model, ties by Efron."""
    score = standardised(log_hazard)
    pairs = concordance(follow_up, log_hazard)
    if not pairs.concordant or not pairs.discordant:
        raise NotMeasurableError("the score orders all comparable pairs alike, so no finite slope exists")
    model = CoxPHSurvivalAnalysis(ties="efron")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("error", LinAlgWarning)
        try:
            model.fit(score.values[:, None], follow_up.structured())
        except (ConvergenceWarning, LinAlgWarning, LinAlgError, ValueError):
            # The inputs are checked above: what is left is a Newton search that went astray.
            raise NotMeasurableError("the recalibration did not converge") from None
    return float(model.coef_[0]) / score.spread


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
