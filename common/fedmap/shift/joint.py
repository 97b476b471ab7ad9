"""All means of a site at once, and each given the others: an input that moved alone does not fit the rest.

The means are a draw from a multivariate t: the covariance between sites is an estimate. Each input's chance
of false alarms is set by what it could show: one that would show a shift of one standard deviation at ten
times its noise needs little, one at four times needs most (weights of Roeder and Wasserman, Statistical
Science 24, 2009). An input that moved also makes its neighbours look odd; so the oddest is named, left out,
and the others are asked again. The tolerances are set on `fedmap_lab.bench.shift_calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, stats
from torch import Tensor

from fedmap.shift.reference import JointReference, Reference
from fedmap.shift.sample import Sample
from fedmap.shift.told.folding import is_folded

BUDGET = {"level": 0.005, "given": 0.025, "spread": 0.004, "shape": 0.003, "range": 0.003, "joint": 0.005}
"""Chances of a false alarm, 4.5 % in all: the rest is for what the normal theory does not know."""
SITES_FOR_FULL_BUDGET = 15
"""With fewer, "given the others" has a part of its chances: how inputs hang together is hardly known."""
LEAST_DIFFERENCE = 0.2
"""In standard deviations: what is worth an alarm."""
LEAST_RATIO = 1.15
"""Of standard deviations, either way."""
LEAST_INDEX = 0.1
"""Below it a distribution counts as stable by convention."""
LEAST_OUTSIDE = 0.01
"""Share of rows."""
SLACK = 0.03
"""Standard deviations by which any input may be off on its own: instruments, rounding."""
MOST_FREEDOM = 1e6
"""As good as a normal distribution."""


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_EVEN = 0.25  # of the budget for "given the others": divided evenly, so that no input is without


@dataclass(frozen=True)
class Given:
    """Each input against what the others say, (inputs,)."""

    alarm: Flags
    difference: Floats  # in standard deviations


@dataclass(frozen=True)
class JointComparison:
    """The vector of means under the covariance that a new site's has."""

    size: int  # dimensions in all
    places: NDArray[np.int64]  # those that vary; all below is of them only
    deviation: Floats
    difference: Floats
    covariance: Floats
    squared: float  # Mahalanobis distance
    freedom: float
    chance: float
    budget: float  # for all questions "given the others" together

    @staticmethod
    def of(reference: Reference, joint: JointReference, sample: Sample) -> JointComparison:
        within = torch.tensor(joint.within, dtype=torch.float64)
        between = torch.tensor(joint.between, dtype=torch.float64)
        places = (within.diagonal() > 0).nonzero().flatten()
        within, between = within[places][:, places], between[places][:, places]
        deviation = (within + between).diagonal().sqrt()
        natural = (1 + 1 / reference.sites) * between + (SLACK * deviation).square().diag()
        covariance = natural + _sampling(within, sample, places)
        difference = (sample.joint.mean - torch.tensor(joint.mean, dtype=torch.float64))[places]
        squared = max(float(difference @ torch.linalg.solve(covariance, difference)), 0.0)
        part = float(torch.linalg.solve(covariance, natural).diagonal().mean())  # of nature in the variance
        if is_folded(len(reference.inputs)):
            part = 1.0  # sums of many sparse inputs have heavy tails in the rows too
        freedom = min(reference.freedom / max(part, 1e-3) ** 2, MOST_FREEDOM)
        return JointComparison(
            size=len(joint.mean),
            places=places.numpy(),
            deviation=deviation.numpy(),
            difference=difference.numpy(),
            covariance=covariance.numpy(),
            squared=squared,
            freedom=freedom,
            chance=float(stats.f.sf(squared / len(places), len(places), freedom)),
            budget=BUDGET["given"] * min(1.0, reference.sites / SITES_FOR_FULL_BUDGET),
        )

    def given_others(self) -> Given:
        """Names the oddest input, leaves it out, and asks the others again until none is odd."""
        alarm, difference = np.zeros(self.size, dtype=np.bool_), np.zeros(self.size)
        left = np.arange(len(self.places))
        while len(left):
            own, chance, limit = self._ask(left)
            difference[self.places[left]] = own
            odd = (chance < limit) & (np.abs(own) >= LEAST_DIFFERENCE)
            if not odd.any():
                break
            oddest = int(np.where(odd, chance / limit, np.inf).argmin())
            alarm[self.places[left[oddest]]] = True
            left = np.delete(left, oddest)
        return Given(alarm, difference)

    def _ask(self, left: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Difference, chance and its limit of each coordinate of a multivariate t given all others."""
        precision = np.linalg.inv(self.covariance[np.ix_(left, left)])
        pull = precision @ self.difference[left]
        own_precision = precision.diagonal()
        own = pull**2 / own_precision
        squared = max(float(self.difference[left] @ pull), 0.0)
        freedom = self.freedom + len(left) - 1
        scale = (self.freedom + np.maximum(squared - own, 0.0)) / freedom
        visibility = self.deviation[left] * np.sqrt(own_precision)
        chance = np.asarray(stats.f.sf(own / scale, 1, freedom))
        limit = budget_by_visibility(visibility, self.budget)
        return pull / own_precision / self.deviation[left], chance, limit


def _sampling(within: Tensor, sample: Sample, places: Tensor) -> Tensor:
    """Covariance of the sampling error of the site's means.

    With the site's own variance where that is larger: a rare value in a few rows is no shift.
    """
    design = sample.joint.design[places]
    more = (sample.joint.variance[places] - within.diagonal()).clamp(min=0)
    return (within * torch.outer(design.sqrt(), design.sqrt()) + (more * design).diag()) / sample.rows


def budget_by_visibility(visibility: Floats, budget: float) -> Floats:
    """Divides a budget over tests; a shift of one standard deviation shows at `visibility` times their noise.

    Most shifts are found, over all inputs, where test j alarms at visibility/2 + c/visibility, c the same for
    all. A part is divided evenly all the same.
    """
    seen = np.clip(visibility, 0.1, 30.0)
    even = np.full(len(seen), _EVEN * budget / len(seen))

    def divided(c: float) -> Floats:
        return np.asarray(2 * stats.norm.sf(np.maximum(seen / 2 + c / seen, 0.0)))

    def surplus(c: float) -> float:
        return float(divided(c).sum() - (1 - _EVEN) * budget)

    low, high = -450.0, 10.0 + 50.0 * float(seen.max())
    return even + divided(float(optimize.brentq(surplus, low, high)))
