"""The pooled baseline hazard against lifelines' Breslow estimator; suppression, order and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from torch import Tensor

from fedmap.algorithm.pooling.baseline import Baseline, BaselineTerms, baseline_terms, pool_baseline
from fedmap.errors import TrainingError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cohort:
    """Rows with a fitted Cox regression: lifelines' own log hazards and baseline."""

    log_hazard: Tensor  # with lifelines' centring of the covariates
    time: Tensor
    event: Tensor
    uncentred: Tensor
    shift: float  # centred = uncentred − shift
    cumulative: pd.Series[float]  # lifelines' H₀ by time

    @property
    def event_times(self) -> list[float]:
        return sorted({float(t) for t in self.time[self.event]})

    def parts(self, sites: int) -> list[Tensor]:
        """Row numbers of `sites` unequal parts."""
        draw = np.random.default_rng(sites).choice(sites, len(self.time), p=_shares(sites))
        return [torch.from_numpy(np.flatnonzero(draw == k)) for k in range(sites)]


def _shares(sites: int) -> Floats:
    raw = np.arange(1.0, sites + 1)
    return np.asarray(raw / raw.sum())


@pytest.fixture(scope="module", params=[5.0, 40.0], ids=["many ties", "some ties"])
def cohort(request: pytest.FixtureRequest) -> Cohort:
    """lifelines works on covariates less their mean, so its H₀ belongs to the log hazard (x − x̄)·β."""
    rng = np.random.default_rng(4)
    features = rng.normal(size=(150, 2)) * [1.0, 3.0] + [2.0, -1.0]
    happens = rng.exponential(np.exp(-features @ [0.5, 0.2]))
    leaves = rng.exponential(2 * float(np.median(happens)), len(features))
    time = np.ceil(np.minimum(happens, leaves) * request.param)
    event = happens <= leaves
    assert len(np.unique(time[event])) < event.sum(), "the data have no ties"
    assert len(np.intersect1d(time[event], time[~event])) > 0, "no censoring at the time of an event"
    frame = pd.DataFrame(features, columns=["a", "b"]).assign(time=time, event=event)
    fitter = CoxPHFitter().fit(frame, "time", "event")
    beta = fitter.params_.to_numpy()
    return Cohort(
        log_hazard=torch.from_numpy(fitter.predict_log_partial_hazard(frame).to_numpy()),
        time=torch.from_numpy(time),
        event=torch.from_numpy(event),
        uncentred=torch.from_numpy(features @ beta),
        shift=float(features.mean(0) @ beta),
        cumulative=fitter.baseline_cumulative_hazard_["baseline cumulative hazard"],
    )


def pooled(
    log_hazard: Tensor,
    time: Tensor,
    event: Tensor,
    grid: Sequence[float],
    parts: Sequence[Tensor] | None = None,
    floor: int = 1,
) -> Baseline:
    whole = [torch.arange(len(time))]
    terms = {
        f"site-{k}": baseline_terms(log_hazard[part], time[part], event[part], grid, floor)
        for k, part in enumerate(whole if parts is None else parts)
    }
    return pool_baseline(terms, grid)


@pytest.mark.parametrize("sites", [1, 2, 3, 7])
def test_rows_split_over_sites_give_lifelines_breslow_baseline_of_all(cohort: Cohort, sites: int) -> None:
    grid = cohort.event_times
    split = pooled(cohort.log_hazard, cohort.time, cohort.event, grid, cohort.parts(sites))
    np.testing.assert_allclose(split.cumulative, cohort.cumulative.loc[grid].to_numpy(), rtol=1e-9)


def test_a_shift_of_the_log_hazard_moves_the_baseline_and_not_the_risk(cohort: Cohort) -> None:
    grid = cohort.event_times
    centred = pooled(cohort.log_hazard, cohort.time, cohort.event, grid)
    plain = pooled(cohort.uncentred, cohort.time, cohort.event, grid)
    np.testing.assert_allclose(plain.cumulative * np.exp(cohort.shift), centred.cumulative, rtol=1e-9)
    np.testing.assert_allclose(
        plain.risk(cohort.uncentred), centred.risk(cohort.log_hazard), rtol=1e-9, atol=1e-12
    )


def test_an_event_between_grid_times_sees_the_risk_set_in_between() -> None:
    # One interval (0, 4]: four rows of weight 1, events at 1 and 3 (on average half way), two rows last.
    # Risk 4 at the start, 2 at the end, so 3 half way: H₀(4) = 2/3. Breslow has 1/4 + 1/3 = 7/12.
    time = torch.tensor([1.0, 3.0, 5.0, 5.0], dtype=torch.float64)
    event = torch.tensor([True, True, False, False])
    baseline = pooled(torch.zeros(4, dtype=torch.float64), time, event, [4.0])
    np.testing.assert_allclose(baseline.cumulative, [2 / 3])


def exponential_rows(rows: int, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Untied survival with hazard `rate` · e^η, followed for ten years, some leaving before."""
    rng = np.random.default_rng(6)
    log_hazard = rng.normal(0, 0.8, rows)
    happens = rng.exponential(1 / (rate * np.exp(log_hazard)))
    leaves = np.minimum(rng.exponential(25, rows), 10.0)
    return (
        torch.from_numpy(log_hazard),
        torch.from_numpy(np.minimum(happens, leaves)),
        torch.from_numpy(happens <= leaves),
    )


def coarse_grid_error(rows: tuple[Tensor, Tensor, Tensor], steps: int) -> float:
    """How far H₀(10) on a grid of equal steps is from Breslow's, as a share of it; rows without ties."""
    log_hazard, time, event = rows
    order = torch.argsort(time, descending=True)
    exact = float((event[order] / log_hazard[order].exp().cumsum(0)).sum())
    grid = [10.0 * step / steps for step in range(1, steps + 1)]
    return abs(float(pooled(*rows, grid).cumulative[-1]) - exact) / exact


def test_the_default_ten_steps_are_as_good_as_breslow_at_a_clinical_event_rate() -> None:
    rows = exponential_rows(20000, rate=0.012)  # one in seven within ten years
    assert 0.1 < float(rows[2].double().mean()) < 0.2
    assert coarse_grid_error(rows, 10) < 2e-3


def test_the_error_of_a_coarse_grid_is_of_second_order_even_when_most_have_the_event() -> None:
    rows = exponential_rows(20000, rate=0.12)
    errors = [coarse_grid_error(rows, steps) for steps in (5, 10, 20)]
    assert errors[0] < 0.05
    assert errors[0] / errors[1] > 3, "half the interval should leave a quarter of the error"
    assert errors[1] / errors[2] > 3


def terms_of(events_per_interval: Sequence[int], floor: int, survivors: int = 50) -> BaselineTerms:
    """A site with so many events half way through each interval (g, g + 1], and rows that stay on."""
    time = [g + 0.5 for g, events in enumerate(events_per_interval) for _ in range(events)]
    happened = [True] * len(time) + [False] * survivors
    time += [100.0] * survivors
    grid = [float(g + 1) for g in range(len(events_per_interval))]
    eta = torch.zeros(len(time), dtype=torch.float64)
    return baseline_terms(eta, torch.tensor(time, dtype=torch.float64), torch.tensor(happened), grid, floor)


def test_intervals_below_the_floor_are_joined_and_their_events_spread_over_them() -> None:
    terms = terms_of([12, 9, 0, 10, 1], floor=10)
    assert terms.joined == 4
    assert terms.events[0] == 12.0
    assert float(terms.events[1:].sum()) == pytest.approx(20.0)
    assert terms.risk_start[1] == 50 + 20
    assert terms.risk_end[4] == 50
    assert bool((terms.risk_start[1:] > terms.risk_end[1:]).all())


@given(st.lists(st.integers(0, 15), min_size=1, max_size=6), st.integers(2, 12))
@settings(max_examples=60)
def test_what_a_site_sends_does_not_change_with_where_inside_a_joined_interval_events_fell(
    events: list[int], floor: int
) -> None:
    """Move all events of the joined run to its first interval: the sums that leave must be the same."""
    terms = terms_of([0, *events], floor)
    total = sum(events)
    if total < floor:
        assert not bool(terms.events.any())
        assert not bool(terms.risk_start.any())
    else:
        assert float(terms.events.sum()) == pytest.approx(total)
    if floor <= total < 2 * floor:  # one run over the whole grid
        moved = terms_of([total, *([0] * len(events))], floor)
        if moved.joined == len(events) + 1:
            assert torch.allclose(moved.events, terms.events)


def test_a_lone_row_at_risk_never_shows_in_the_sums() -> None:
    time = torch.tensor([0.5] * 6 + [1.5] * 6 + [2.5], dtype=torch.float64)
    event = torch.tensor([True] * 12 + [False])
    eta = torch.cat([torch.zeros(12), torch.tensor([1.2345])]).double()
    terms = baseline_terms(eta, time, event, [1.0, 2.0, 3.0], floor=5)
    lone = float(eta[-1].exp())
    for sums in (terms.risk_start, terms.risk_end):
        assert not bool(torch.isclose(sums, torch.tensor(lone, dtype=torch.float64)).any())


@pytest.mark.parametrize(("rows", "floor"), [(100, 10), (200, 10), (60, 5), (60, 1)])
def test_suppression_does_not_bias_the_hazard(rows: int, floor: int) -> None:
    """Thirty sites, a constant hazard of 0.05: H₀(10) is 0.5, whatever the floor."""
    grid = [float(year) for year in range(1, 11)]
    estimates = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        by_site = {}
        for site in range(30):
            happens = rng.exponential(20.0, rows)
            by_site[str(site)] = baseline_terms(
                torch.zeros(rows),
                torch.tensor(np.minimum(happens, 10.0)),
                torch.tensor(happens <= 10),
                grid,
                floor,
            )
        estimates.append(float(pool_baseline(by_site, grid).cumulative[-1]))
    assert float(np.mean(estimates)) == pytest.approx(0.5, rel=0.05)


def test_the_pooled_baseline_does_not_depend_on_the_order_in_which_sites_answer() -> None:
    sites = {name: terms_of(events, 1) for name, events in {"a": [3, 5], "b": [7, 2], "c": [1, 9]}.items()}
    forward = pool_baseline(sites, [1.0, 2.0])
    backward = pool_baseline(dict(reversed(sites.items())), [1.0, 2.0])
    assert torch.equal(forward.cumulative, backward.cumulative)


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=30),
    st.data(),
)
def test_risk_rises_with_time_and_with_the_log_hazard_and_stays_a_probability(
    times: list[int], data: st.DataObject
) -> None:
    rows = len(times)
    event = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows).filter(any))
    eta = data.draw(st.lists(st.floats(-4, 4), min_size=rows, max_size=rows))
    grid = [2.0, 3.0, 5.0, 8.0]
    log_hazard = torch.tensor(eta, dtype=torch.float64)
    baseline = pooled(log_hazard, torch.tensor(times, dtype=torch.float64), torch.tensor(event), grid)
    risk = baseline.risk(log_hazard.sort().values)
    assert risk.shape == (rows, len(grid))
    assert bool(torch.isfinite(risk).all())
    assert bool(((risk >= 0) & (risk <= 1)).all())
    assert bool((risk.diff(dim=0) >= 0).all()), "a higher log hazard has a lower risk"
    assert bool((risk.diff(dim=1) >= 0).all()), "risk falls with time"


def test_a_tiny_risk_keeps_its_digits() -> None:
    baseline = Baseline((1.0,), torch.tensor([1e-12], dtype=torch.float64))
    assert float(baseline.risk(torch.tensor([-5.0]))) == pytest.approx(1e-12 * np.exp(-5.0), rel=1e-6)


@pytest.mark.parametrize(
    "by_site",
    [
        pytest.param({}, id="no site"),
        pytest.param({"a": terms_of([0, 0], 1)}, id="nobody had an event"),
        pytest.param({"a": terms_of([4, 5], 10), "b": terms_of([0, 3], 10)}, id="all below the floor"),
    ],
)
def test_a_baseline_without_a_single_event_is_refused_with_the_next_step(
    by_site: dict[str, BaselineTerms],
) -> None:
    with pytest.raises(TrainingError, match="events") as refused:
        pool_baseline(by_site, [1.0, 2.0])
    assert "sites" in refused.value.hint


@given(st.integers(0, 10_000))
def test_no_sum_is_negative_where_nobody_is_left_at_the_horizon(seed: int) -> None:
    """Joined intervals that end at a risk set of zero: rounding must not take the sum below it."""
    stream = torch.Generator().manual_seed(seed)
    time = torch.rand(200, generator=stream) * 9.9
    event = torch.rand(200, generator=stream) < 0.08
    grid = [float(year) for year in range(1, 11)]
    terms = baseline_terms(torch.randn(200, generator=stream), time, event, grid, floor=10)
    sums = torch.cat([terms.events, terms.position, terms.risk_start, terms.risk_end])
    assert bool((sums >= 0).all())
