"""Whether fine-tuning helped: both models on the same held-out rows, and their difference, with intervals.

Intervals hold 95 % of a thousand Bayesian-bootstrap draws (`fedmap.metrics.scores`). Both models see the
same draws, so the difference is far better known than either value. It is judged by the plan's own metric.
Rows of one person count as if they were several people's: where a plan allows them, intervals are too narrow,
and the report says so. No row is kept here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmap.algorithm.examples import Examples
from fedmap.metrics import METRICS, Metric, MetricResult, higher_is_better, metric_label
from fedmap.scoring.calibration_bins import pool_bins
from fedmap.scoring.evaluation import Scoring
from fedmap.scoring.evaluation_terms import calibration_terms
from fedmap.scoring.figures import CalibrationBin
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_site.personalise.model import Outcome
from fedmap_site.predict.rows import ReadyModel

Floats = NDArray[np.float64]
DRAWS = 1000
FEWEST_ROWS, FEWEST_CASES = 30, 5
"""Held-out rows, and rows of each outcome among them, below which no verdict is given."""
_LEAST_DRAWS = 0.9  # share of draws in which a metric must have a value
_LEADS: Mapping[Outcome, str] = {
    "helped": "Fine-tuning helped",
    "no_difference": "No clear difference",
    "worse": "Fine-tuning made it worse",
    "cannot_tell": "No verdict is possible",
}


@dataclass(frozen=True)
class Figure:
    """A value with its 95 % interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Compared:
    """One metric before (μ) and after (the personal model)."""

    metric: str
    before: Figure | None
    after: Figure | None
    difference: Figure | None  # after − before
    note: str = ""  # why something is missing


@dataclass(frozen=True)
class Comparison:
    """What the held-out rows say."""

    metrics: tuple[Compared, ...]
    outcome: Outcome
    reason: str
    """The figures behind it, or why there are none."""
    before_curve: tuple[CalibrationBin, ...]
    after_curve: tuple[CalibrationBin, ...]

    @property
    def lead(self) -> str:
        """The outcome in words."""
        return _LEADS[self.outcome]

    @property
    def advice(self) -> str:
        return "Use the personal model." if self.outcome == "helped" else "Stay with the shared model."

    @property
    def verdict(self) -> str:
        """All of it in a line."""
        return f"{self.lead}: {self.reason}. {self.advice}"


def compare(
    shared: ReadyModel, personal: ReadyModel, test: Examples, train: Examples, seed: int
) -> Comparison:
    """Both models on scaled `test` rows; `train` gives the censoring of a survival task."""
    follow_up = train if len(train) else test
    scorings = [
        Scoring(ready.plan, ready.model, ready.parameters, ready.rule, test, follow_up, seed)
        for ready in (shared, personal)
    ]
    before, after = map(_scored, scorings)
    compared = tuple(_compared(name, before, after) for name in before.results)
    plan = shared.plan
    main = next(one for one in compared if one.metric == plan.task.metric)
    few = too_few(plan, test)
    outcome = "cannot_tell" if few else _judged(main)
    return Comparison(compared, outcome, _reason(outcome, main, few), *map(_curve, scorings))


def too_few(plan: StudyPlan, test: Examples) -> str:
    """Why the held-out rows cannot give a verdict; empty where they can."""
    if len(test) < FEWEST_ROWS:
        return f"fewer than {FEWEST_ROWS} held-out rows"
    if plan.task.kind == "cox":
        events = 0 if test.event is None else int(test.event.sum())
        return f"fewer than {FEWEST_CASES} events among the held-out rows" if events < FEWEST_CASES else ""
    classes = max(2, len(plan.task.classes))
    least = int(np.bincount(test.target.numpy(), minlength=classes).min())
    return f"fewer than {FEWEST_CASES} held-out rows of one outcome" if least < FEWEST_CASES else ""


@dataclass(frozen=True, eq=False)
class _Scored:
    results: Mapping[str, MetricResult]
    draws: Mapping[str, Floats]


def _scored(scoring: Scoring) -> _Scored:
    if not len(scoring.test):
        return _Scored({result.name: result for result in scoring.measure()}, {})
    scores = scoring.scores()
    results = scores.measure()
    return _Scored({result.name: result for result in results}, scores.draws(results, scoring.seed, DRAWS))


def _curve(scoring: Scoring) -> tuple[CalibrationBin, ...]:
    """Predicted against observed risk, small cells joined; empty where there are none but small ones."""
    return pool_bins({"": calibration_terms(scoring, scoring.plan.limits.min_cell)})


def _compared(name: str, before: _Scored, after: _Scored) -> Compared:
    was, now = before.results[name], after.results[name]
    notes = [
        f"{words}: {one.reason}"
        for words, one in (("before", was), ("after", now))
        if not isinstance(one, Metric)
    ]
    if not isinstance(was, Metric) or not isinstance(now, Metric):
        return Compared(
            name,
            _figure(name, was, before.draws) if isinstance(was, Metric) else None,
            _figure(name, now, after.draws) if isinstance(now, Metric) else None,
            None,
            "; ".join(notes),
        )
    difference = Figure(now.value - was.value)
    if name in before.draws and name in after.draws:
        low, high = _interval(difference.value, after.draws[name] - before.draws[name], name, paired=True)
        difference = Figure(difference.value, low, high)
    return Compared(name, _figure(name, was, before.draws), _figure(name, now, after.draws), difference)


def _figure(name: str, metric: Metric, draws: Mapping[str, Floats]) -> Figure:
    if name not in draws:
        return Figure(metric.value)
    return Figure(metric.value, *_interval(metric.value, draws[name], name, paired=False))


def _interval(value: float, draws: Floats, name: str, *, paired: bool) -> tuple[float | None, float | None]:
    """Around the value itself, as far as the draws lie around their own mean."""
    finite = draws[np.isfinite(draws)]
    if finite.size < _LEAST_DRAWS * draws.size:
        return None, None
    if not paired and not float(np.ptp(finite)):
        return None, None  # at its bound in every draw, which does not prove that it stays there
    low, high = (value + float(edge) for edge in np.quantile(finite - finite.mean(), (0.025, 0.975)))
    if not paired and METRICS[name].bounded:
        low, high = max(0.0, low), min(1.0, high)
    return low, high


def _judged(main: Compared) -> Outcome:
    found = main.difference
    if found is None or found.low is None or found.high is None:
        return "cannot_tell"
    low, high = (found.low, found.high) if higher_is_better(main.metric) else (-found.high, -found.low)
    if low > 0:
        return "helped"
    return "worse" if high < 0 else "no_difference"


def _reason(outcome: Outcome, main: Compared, few: str) -> str:
    if outcome == "cannot_tell":
        return few or main.note or "the interval of the difference could not be computed"
    assert main.before is not None
    assert main.after is not None
    assert main.difference is not None
    figures = (
        f"{metric_label(main.metric)} {number(main.before.value)} before, {number(main.after.value)} after, "
        f"difference {signed(main.difference)}"
    )
    return f"{figures}; the interval includes 0" if outcome == "no_difference" else figures


def number(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def signed(figure: Figure) -> str:
    """+0.031 (95 % interval −0.002 to +0.064)."""
    if figure.low is None or figure.high is None:
        return _sign(figure.value)
    return f"{_sign(figure.value)} (95 % interval {_sign(figure.low)} to {_sign(figure.high)})"


def _sign(value: float) -> str:
    shown = f"{abs(value):.3f}"
    if not float(shown):
        return shown
    return f"{'−' if math.copysign(1, value) < 0 else '+'}{shown}"


def target_of(name: str) -> str:
    """What a good value is, for people."""
    metric = METRICS[name]
    if metric.two_sided:
        return f"best at {metric.ideal:g}"
    return "higher is better" if metric.ideal == 1.0 else "lower is better"
