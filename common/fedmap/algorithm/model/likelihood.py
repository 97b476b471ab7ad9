"""Negative log-likelihoods L and their gradients with respect to a model's outputs, for many sites at once.

Binary (one logit), multiclass (one logit per class) and Cox's partial likelihood with Efron's treatment of
ties. Each returns the *sum* over rows, as the paper's L; dividing by N_k is the caller's business. Padding
rows carry weight 0 and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

LikelihoodName = Literal["bernoulli", "categorical", "cox"]


@dataclass(frozen=True)
class Outcome:
    """Outcomes of one batch at S sites, in the form its likelihood wants. Rows are (S, B)."""

    weight: Tensor  # (S, B) float32: 1 for a true row, 0 for padding
    label: Tensor | None = None  # (S, B) int64, classification
    risk: RiskSets | None = None  # survival; rows are sorted by falling time, padding last


@dataclass(frozen=True)
class RiskSets:
    """Who is at risk when, for rows sorted by falling time: positions only, so ties are settled once."""

    event: Tensor  # (S, B) float32: 1 where the event happened
    last: Tensor  # (S, B) int64: last position that is still at risk at this row's time (end of its tie)
    before: Tensor  # (S, B) int64: first position of the tie; a cumulative sum up to it leaves the tie out
    share: Tensor  # (S, B) float64: Efron's l/d for the l-th of d tied events, 0 for the rest


def risk_sets(time: NDArray[np.float64], event: NDArray[np.bool_], rows: NDArray[np.int64]) -> RiskSets:
    """Tie structure of (S, B) batches whose first `rows` entries are true and sorted by falling time."""
    sites, width = time.shape
    positions = np.arange(width)
    true_row = positions[None, :] < rows[:, None]
    # Padding gets times of its own below every true time, so that it ties with nobody.
    ranked = np.where(true_row, time, -1.0 - positions[None, :])
    starts = np.ones((sites, width), dtype=bool)
    starts[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    before = np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
    ends = np.ones((sites, width), dtype=bool)
    ends[:, :-1] = starts[:, 1:]
    last = np.minimum.accumulate(np.where(ends, positions, width - 1)[:, ::-1], axis=1)[:, ::-1]
    happened = event & true_row
    running = np.zeros((sites, width + 1))
    np.cumsum(happened, axis=1, out=running[:, 1:])
    before_tie = np.take_along_axis(running, before, axis=1)
    tied = np.take_along_axis(running, last + 1, axis=1) - before_tie
    share = happened * (running[:, :-1] - before_tie) / np.maximum(tied, 1.0)
    return RiskSets(
        event=torch.from_numpy(happened.astype(np.float32)),
        last=torch.from_numpy(last.copy()),
        before=torch.from_numpy(before),
        share=torch.from_numpy(share),
    )


def negative_log_likelihood(name: LikelihoodName, outputs: Tensor, outcome: Outcome) -> Tensor:
    """L summed over the rows of each site: (S, B, outputs) → (S,). Differentiable."""
    if name == "cox":
        return _cox(outputs[..., 0], outcome)[0]
    label = _label(outcome)
    if name == "bernoulli":
        logit = outputs[..., 0]
        each = F.softplus(logit) - label.to(logit.dtype) * logit
    else:
        each = torch.logsumexp(outputs, -1) - outputs.gather(-1, label.unsqueeze(-1))[..., 0]
    return (each * outcome.weight).sum(1)


def output_gradient(name: LikelihoodName, outputs: Tensor, outcome: Outcome) -> Tensor:
    """∂L/∂outputs in closed form, (S, B, outputs)."""
    if name == "cox":
        return _cox_gradient(outputs[..., 0], outcome).unsqueeze(-1)
    label = _label(outcome)
    weight = outcome.weight.unsqueeze(-1)
    if name == "bernoulli":
        return (torch.sigmoid(outputs) - label.unsqueeze(-1).to(outputs.dtype)) * weight
    probability = torch.softmax(outputs, -1)
    hot = torch.zeros_like(probability).scatter_(-1, label.unsqueeze(-1), 1.0)
    return (probability - hot) * weight


def _label(outcome: Outcome) -> Tensor:
    assert outcome.label is not None, "a classification likelihood needs labels"
    return outcome.label


def _cox(eta: Tensor, outcome: Outcome) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """−Σ_events [η_i − log(Σ_{at risk} e^η − (l/d) Σ_{tied events} e^η)], shifted by max η.

    In float64: one shift for all risk sets would lose the early ones in float32 once log hazards spread.
    """
    risk = outcome.risk
    assert risk is not None, "the Cox likelihood needs risk sets"
    true_row = outcome.weight > 0
    exact = torch.where(true_row, eta.double(), 0.0)
    peak = exact.amax(1, keepdim=True).detach()
    hazard = torch.where(true_row, torch.exp(exact - peak), 0.0)  # (S, B)
    at_risk = hazard.cumsum(1).gather(1, risk.last)
    tied = F.pad((hazard * risk.event).cumsum(1), (1, 0))  # (S, B+1), so that index 0 is "nothing yet"
    tied = tied.gather(1, risk.last + 1) - tied.gather(1, risk.before)
    denominator = torch.where(risk.event > 0, at_risk - risk.share * tied, 1.0)
    each = risk.event * (torch.log(denominator) + peak - exact)
    return each.sum(1).to(eta.dtype), (hazard, denominator)


def _cox_gradient(eta: Tensor, outcome: Outcome) -> Tensor:
    risk = outcome.risk
    assert risk is not None, "the Cox likelihood needs risk sets"
    _, (hazard, denominator) = _cox(eta, outcome)
    inverse = risk.event / denominator
    # A row is at risk for every event whose risk set reaches as far as the row: sum those from the right.
    reach = torch.zeros_like(hazard).scatter_add_(1, risk.last, inverse)
    from_right = reach.flip(1).cumsum(1).flip(1)
    # Efron takes a share of the tied events back out; a tie is known by its last position.
    taken = torch.zeros_like(hazard).scatter_add_(1, risk.last, inverse * risk.share).gather(1, risk.last)
    return (hazard * (from_right - risk.event * taken) - risk.event).to(eta.dtype)
