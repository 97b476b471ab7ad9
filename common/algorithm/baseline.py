"""A pooled Breslow baseline hazard on the plan's time grid, so that a log hazard becomes a risk in per cent.

For each interval (t_{g−1}, t_g] a site sends its events, where in the interval they fell on average, and
the risk-set sums Σ e^η over those still at risk just after t_{g−1} and at t_g. The risk set is taken as
linear in between. Where the grid is the set of event times this is Breslow's estimator exactly; on a
coarse grid its error is of second order in the interval. Intervals with fewer events than the floor
(but not none) are left out with their risk sets, which suppresses small cells without bias in either
direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.errors import TrainingError


@dataclass(frozen=True)
class BaselineTerms:
    """One site's sums per interval, all (grid,) float64; a suppressed interval holds zeros throughout."""

    events: Tensor
    position: Tensor  # Σ over events of (t − t_{g−1}) / (t_g − t_{g−1})
    risk_start: Tensor  # Σ e^η over rows with time > t_{g−1}
    risk_end: Tensor  # Σ e^η over rows with time ≥ t_g
    suppressed: int  # intervals left out for being below the floor


@dataclass(frozen=True)
class Baseline:
    """The cumulative baseline hazard H₀ at the grid times."""

    grid: tuple[float, ...]
    cumulative: Tensor  # (grid,) float64

    def risk(self, log_hazard: Tensor) -> Tensor:
        """P(event by each grid time) = 1 − exp(−H₀ e^η): (rows,) → (rows, grid)."""
        return -torch.expm1(-self.cumulative * log_hazard.double().exp().unsqueeze(-1))


def baseline_terms(
    log_hazard: Tensor, time: Tensor, event: Tensor, grid: Sequence[float], floor: int
) -> BaselineTerms:
    """The sums one site sends. Nothing per patient, and no interval with 1 … floor−1 events."""
    edges = torch.tensor([0.0, *grid], dtype=torch.float64)
    time, hazard = time.double(), log_hazard.double().exp()
    start, end = edges[:-1], edges[1:]
    inside = (
        (time.unsqueeze(1) > start) & (time.unsqueeze(1) <= end) & event.bool().unsqueeze(1)
    )  # (rows, grid)
    events = inside.sum(0).double()
    position = (inside * ((time.unsqueeze(1) - start) / (end - start))).sum(0)
    risk_start = ((time.unsqueeze(1) > start) * hazard.unsqueeze(1)).sum(0)
    risk_end = ((time.unsqueeze(1) >= end) * hazard.unsqueeze(1)).sum(0)
    small = (events > 0) & (events < floor)
    keep = (~small).double()
    return BaselineTerms(events * keep, position * keep, risk_start * keep, risk_end * keep, int(small.sum()))


def pool_baseline(by_site: Mapping[str, BaselineTerms], grid: Sequence[float]) -> Baseline:
    """H₀ over all sites. Refuses a grid on which no site left a single event."""
    ordered = [by_site[site] for site in sorted(by_site)]
    if not ordered or not any(bool(terms.events.any()) for terms in ordered):
        raise TrainingError(
            "no interval of the time grid has enough events at any site for a baseline hazard",
            hint="use a coarser task.grid in the study plan, or a lower limits.min_cell where policy allows",
        )
    events = torch.stack([terms.events for terms in ordered]).sum(0)
    position = torch.stack([terms.position for terms in ordered]).sum(0)
    start = torch.stack([terms.risk_start for terms in ordered]).sum(0)
    end = torch.stack([terms.risk_end for terms in ordered]).sum(0)
    mean_position = position / events.clamp(min=1)
    at_risk = start + (end - start) * mean_position
    increments = torch.where(events > 0, events / at_risk.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    return Baseline(tuple(float(t) for t in grid), increments.cumsum(0))
