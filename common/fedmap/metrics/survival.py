"""Metrics of survival predictions, from scikit-survival.

    c_index                Harrell's, over the whole follow-up; equal scores count a half
    c_index_ipcw           Uno's, for events before the horizon
    brier                  at the horizon, weighted by the inverse probability of censoring (IPCW)
    integrated_brier       mean over the grid's span, trapezoid rule, IPCW
    calibration_slope      coefficient of the log-hazard in a Cox model (Efron ties) up to the horizon
    calibration_intercept  shift of the log cumulative hazard that makes the mean predicted risk at the
                           horizon equal the Kaplan-Meier risk (see calibration.py)

Censoring is estimated from training rows and never extrapolated: a Brier score beyond their follow-up is
skipped; the integrated score and Uno's C are measured over the part they cover, with a note. Baseline
hazards are not estimated here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from sksurv.exceptions import NoComparablePairException
from sksurv.metrics import brier_score, concordance_index_ipcw, integrated_brier_score
from sksurv.nonparametric import SurvivalFunctionEstimator

from fedmap.errors import TrainingError
from fedmap.metrics.calibration import cloglog_intercept
from fedmap.metrics.follow_up import FollowUp, concordance, cox_slope
from fedmap.metrics.inputs import AnyArray, Floats, checked_probabilities, finite_scores
from fedmap.metrics.names import chosen_metric_names
from fedmap.metrics.results import MetricResult, Noted, NotMeasurableError, SkippedMetric, measure, row_count


def survival_metrics(
    log_hazard: AnyArray,
    risk_at_grid: AnyArray | None,
    grid: AnyArray,
    horizon: float,
    time: AnyArray,
    event: AnyArray,
    train_time: AnyArray,
    train_event: AnyArray,
    *,
    only: Collection[str] | None = None,
) -> tuple[MetricResult, ...]:
    """Measure a survival prediction on test rows (`time`, `event`).

    `log_hazard` (rows,) ranks them, the highest first to have the event. `risk_at_grid` (rows, grid) is the
    probability of the event by each grid time, None without a baseline hazard. `train_time` and
    `train_event` are what censoring is estimated from: the site's training rows or, where all rows are test
    rows, the test rows themselves. `only` limits the work to some metric names.
    """
    names = chosen_metric_names("cox", only)
    test = FollowUp.checked(time, event, "test follow-up times")
    train = FollowUp.checked(train_time, train_event, "training follow-up times")
    times = _checked_grid(grid, horizon)
    rows = test.time.size
    risk = None
    if risk_at_grid is not None:
        risk = checked_probabilities(risk_at_grid, "risks", (rows, times.size))
    scored = _Scored(finite_scores(log_hazard, "log-hazards", (rows,)), risk, times, test, train)
    if not rows:
        return tuple(SkippedMetric(name, "no test rows") for name in names)
    return measure(names, SURVIVAL_METRICS, scored)


@dataclass(frozen=True)
class _Scored:
    log_hazard: Floats  # (rows,)
    risk: Floats | None  # (rows, grid)
    grid: Floats  # (grid,), the last is the horizon
    test: FollowUp
    train: FollowUp

    @property
    def horizon(self) -> float:
        return float(self.grid[-1])

    @property
    def rows(self) -> str:
        return row_count(self.test.time.size)

    def absolute_risk(self) -> Floats:
        if self.risk is None:
            raise NotMeasurableError("no baseline hazard, so no absolute risks")
        return self.risk

    def test_until(self, limit: float) -> FollowUp:
        """Test follow-up stopped at a limit; without any event scikit-survival measures nothing."""
        return _with_an_event(self.test.until(limit), "test")

    def train_until(self, limit: float) -> FollowUp:
        """Training follow-up stopped at a limit; without any event scikit-survival refuses it."""
        return _with_an_event(self.train.until(limit), "training")

    def need_test_rows_at_the_horizon(self) -> None:
        if not self.test.reaches(self.horizon):
            raise NotMeasurableError(f"none of {self.rows} is followed up to the horizon")


def _with_an_event(follow_up: FollowUp, part: str) -> FollowUp:
    if not follow_up.event.any():
        rows = row_count(follow_up.time.size, part)
        raise NotMeasurableError(f"no event within the time measured among {rows}")
    return follow_up


def _c_index(scored: _Scored) -> float:
    return concordance(scored.test, scored.log_hazard).index


def _c_index_ipcw(scored: _Scored) -> float | Noted:
    test = scored.test_until(scored.horizon)
    train = scored.train_until(scored.horizon)
    # Weights are known and finite strictly before the last training time.
    tau = min(scored.horizon, float(train.time.max()))
    if not np.any(test.event & (test.time < tau)):
        raise NotMeasurableError(f"no event within the time measured among {scored.rows}")
    try:
        with np.errstate(invalid="ignore"):  # 0/0 where nobody is followed longer than the only events
            index = float(
                concordance_index_ipcw(
                    train.structured(), test.structured(), scored.log_hazard, tau=tau, tied_tol=0.0
                )[0]
            )
    except NoComparablePairException:
        index = np.nan
    if not np.isfinite(index):
        raise NotMeasurableError(f"no comparable pair among {scored.rows}")
    if tau < scored.horizon:
        return Noted(index, "measured up to the end of training follow-up, before the horizon")
    return index


def _brier(scored: _Scored) -> float:
    survival = 1.0 - scored.absolute_risk()[:, -1]
    test = scored.test_until(scored.horizon)
    train = scored.train_until(scored.horizon)
    scored.need_test_rows_at_the_horizon()
    if not scored.train.reaches(scored.horizon):
        rows = row_count(train.time.size, "training")
        raise NotMeasurableError(f"none of {rows} is followed up to the horizon, so censoring is unknown")
    return float(brier_score(train.structured(), test.structured(), survival, scored.horizon)[1][0])


def _integrated_brier(scored: _Scored) -> float | Noted:
    survival = 1.0 - scored.absolute_risk()
    scored.test_until(scored.horizon)  # no event at all is the plainer reason, given first
    covered = np.array(
        [
            time >= scored.test.time.min() and scored.test.reaches(time) and scored.train.reaches(time)
            for time in scored.grid
        ]
    )
    of_the_grid = f"{np.count_nonzero(covered)} of {scored.grid.size} grid times"
    if np.count_nonzero(covered) < 2:
        raise NotMeasurableError(f"test and training follow-up cover only {of_the_grid}, two are needed")
    times = scored.grid[covered]
    # Stopping follow-up at the last covered time keeps every row's weight defined.
    test = scored.test_until(times[-1])
    train = scored.train_until(times[-1])
    score = float(integrated_brier_score(train.structured(), test.structured(), survival[:, covered], times))
    return score if covered.all() else Noted(score, f"integrated over only {of_the_grid}")


def _calibration_slope(scored: _Scored) -> float:
    return cox_slope(scored.test.until(scored.horizon), scored.log_hazard)


def _calibration_intercept(scored: _Scored) -> float:
    risk = scored.absolute_risk()[:, -1]
    test = scored.test_until(scored.horizon)
    scored.need_test_rows_at_the_horizon()
    kaplan_meier = SurvivalFunctionEstimator().fit(test.structured())
    observed = 1.0 - float(kaplan_meier.predict_proba([scored.horizon])[0])
    return cloglog_intercept(risk, observed)


SURVIVAL_METRICS: Mapping[str, Callable[[_Scored], float | Noted]] = MappingProxyType(
    {
        "c_index": _c_index,
        "c_index_ipcw": _c_index_ipcw,
        "brier": _brier,
        "integrated_brier": _integrated_brier,
        "calibration_slope": _calibration_slope,
        "calibration_intercept": _calibration_intercept,
    }
)


def _checked_grid(grid: AnyArray, horizon: float) -> Floats:
    times = np.asarray(grid, dtype=np.float64)
    rising = times.ndim == 1 and times.size > 0 and bool(np.all(np.diff(times, prepend=0.0) > 0))
    if not rising or not np.isclose(times[-1], horizon, rtol=1e-9, atol=0.0):
        raise TrainingError(
            "the grid of times must rise from above zero to the horizon",
            hint="leave the grid out of the plan's [task] section for ten equal steps up to the horizon",
        )
    return times
