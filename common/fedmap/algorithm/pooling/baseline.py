"""A pooled Breslow baseline hazard on the plan's time grid, so that a log hazard becomes a risk in per cent.

For each interval (t_{g−1}, t_g] a site sends its events, where in the interval they fell on average, and
the risk-set sums Σ e^η over those still at risk just after t_{g−1} and at t_g. The risk set is taken as
linear in between. Where the grid is the set of event times this is Breslow's estimator exactly; on a
coarse grid its error is of second order in the interval.

Small cells: a site joins neighbouring intervals until each holds at least `floor` events, and beyond each
inner edge at least `floor` rows remain at risk. It then spreads the events of a joined interval over its
parts by their share of time at risk, taking the risk set as linear. Dropping small intervals instead would
select on the outcome and bias the hazard by tens of per cent. A site with fewer events in all than the
floor sends zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.errors import TrainingError


@dataclass(frozen=True)
class BaselineTerms:
    """One site's sums per interval, all (grid,) float64."""

    events: Tensor
    position: Tensor  # Σ over events of (t − t_{g−1}) / (t_g − t_{g−1})
    risk_start: Tensor  # Σ e^η over rows with time > t_{g−1}
    risk_end: Tensor  # Σ e^η over rows with time ≥ t_g
    joined: int  # intervals that were joined with a neighbour, or left out, for being below the floor


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
    """The sums one site sends. Nothing per patient, and no count of events from 1 to floor−1."""
    times, hazard, happened = time.double(), log_hazard.double().exp(), event.bool()
    edges = [0.0, *(float(t) for t in grid)]
    blocks = _joined_intervals(times, happened, edges, floor)
    zeros = torch.zeros(4, len(grid), dtype=torch.float64)
    joined = len(grid) - sum(len(block) == 1 for block in blocks)
    sent = BaselineTerms(zeros[0], zeros[1], zeros[2], zeros[3], joined)
    for block in blocks:
        start, end = edges[block[0]], edges[block[-1] + 1]
        inside = happened & (times > start) & (times <= end)
        at_end = times >= end
        if 0 < int((times == end).sum()) < floor:
            at_end = times > end  # a handful of rows exactly on the edge would show in the difference
        if 0 < int(at_end.sum()) < floor:
            at_end = torch.zeros_like(at_end)
        risk_start, risk_end = hazard[times > start].sum(), hazard[at_end].sum()
        cells = slice(block[0], block[-1] + 1)
        if len(block) == 1:
            sent.events[cells] = inside.sum().double()
            sent.position[cells] = ((times[inside] - start) / (end - start)).sum()
            sent.risk_start[cells], sent.risk_end[cells] = risk_start, risk_end
            continue
        left, right = torch.tensor(edges[cells]), torch.tensor(edges[block[0] + 1 : block[-1] + 2])
        slope = (risk_end - risk_start) / (end - start)
        sent.risk_start[cells] = risk_start + slope * (left.double() - start)
        sent.risk_end[cells] = (risk_start + slope * (right.double() - start)).clamp(min=0)  # rounding at 0
        exposure = (sent.risk_start[cells] + sent.risk_end[cells]) * (right - left).double()
        sent.events[cells] = inside.sum() * exposure / exposure.sum()
        sent.position[cells] = 0.5 * sent.events[cells]
    return sent


def _joined_intervals(
    time: Tensor, event: Tensor, edges: Sequence[float], floor: int
) -> list[tuple[int, ...]]:
    """Runs of intervals with at least `floor` events each; none at all where the site has fewer."""
    cells = range(len(edges) - 1)
    if floor <= 1:
        return [(cell,) for cell in cells]
    blocks: list[tuple[int, ...]] = []
    open_block: tuple[int, ...] = ()
    for cell in cells:
        open_block = (*open_block, cell)
        start, end = edges[open_block[0]], edges[cell + 1]
        enough = int((event & (time > start) & (time <= end)).sum()) >= floor
        if enough and (cell == cells[-1] or int((time > end).sum()) >= floor):
            blocks.append(open_block)
            open_block = ()
    if open_block and blocks:
        blocks[-1] = (*blocks[-1], *open_block)
    return blocks


def pool_baseline(by_site: Mapping[str, BaselineTerms], grid: Sequence[float]) -> Baseline:
    """H₀ over all sites. Refuses a grid on which no site left a single event."""
    ordered = [by_site[site] for site in sorted(by_site)]
    if not ordered or not any(bool(terms.events.any()) for terms in ordered):
        raise TrainingError(
            "no interval of the time grid has enough events at any site for a baseline hazard",
            hint="no site has as many events as limits.min_cell: wait for more data or more sites",
        )
    if any(len(terms.events) != len(grid) for terms in ordered):
        raise TrainingError(
            "a site's baseline sums are not on the plan's time grid",
            hint="check that all sites approved the same study plan",
        )
    events = torch.stack([terms.events for terms in ordered]).sum(0)
    position = torch.stack([terms.position for terms in ordered]).sum(0)
    start = torch.stack([terms.risk_start for terms in ordered]).sum(0)
    end = torch.stack([terms.risk_end for terms in ordered]).sum(0)
    mean_position = torch.where(events > 0, position / events, 0.5)
    at_risk = start + (end - start) * mean_position
    increments = torch.where(events > 0, events / at_risk.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    if not bool(torch.isfinite(increments.cumsum(0)).all()):
        raise TrainingError(
            "the pooled baseline hazard is not finite",
            hint="a site sent events where nobody is at risk: look at the sites' terms of the rule",
        )
    return Baseline(tuple(float(t) for t in grid), increments.cumsum(0))
