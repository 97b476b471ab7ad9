"""Is a site's difference more than sites differ by nature? One budget of false alarms for all questions.

A new site of the federation has a mean that varies as the sites' means do, plus the sampling error of its own
rows. As the former is an estimate from few sites, differences follow Student's t (one input) or Fisher's F
(several). The questions, and their shares of the budget:

- level: is an input's mean elsewhere?
- given the others: is it where the other inputs say it should be? Natural differences move inputs together,
  so that a shift in one input alone shows here first. The share is divided so that a shift of one standard
  deviation is found wherever it can be (`joint`).
- spread: is the variance another?
- shape: is the population stability index larger than a usual site's?
- range: are more rows beyond the federation's range than any site can have had?
- jointly: is the vector of all means too far out (Mahalanobis)?

A difference that no model would notice is no alarm, however many rows prove it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats
from torch import Tensor

from fedmap.shift.joint import (
    BUDGET,
    LEAST_DIFFERENCE,
    LEAST_INDEX,
    LEAST_OUTSIDE,
    LEAST_RATIO,
    MOST_FREEDOM,
    SLACK,
    Flags,
    Floats,
    JointComparison,
)
from fedmap.shift.reference import Reference
from fedmap.shift.sample import Bins, Sample
from fedmap.shift.told.folding import is_folded

_SPARSE_FREEDOM = 5.0  # how often a rare thing is coded differs between sites by factors: a heavy tail


@dataclass(frozen=True)
class Findings:
    """Per input, or None where the question cannot be asked; (inputs,) each."""

    level: Flags
    given: Flags
    spread: Flags
    shape: Flags
    range: Flags
    difference: Floats  # of the mean, in standard deviations of the federation
    given_difference: Floats | None  # from what the other inputs say
    ratio: Floats  # of the standard deviation to that inside the federation's sites
    psi: Floats
    outside: Floats  # share of rows in the open bins
    joint: bool
    distance: float | None  # Mahalanobis; of a usual site about √dimensions
    chance: float | None  # of a distance at least as large at a site of the federation


def judge(reference: Reference, sample: Sample) -> Findings:
    """Needs at least one row."""
    asked = _Asked.of(reference, sample)
    share = {question: budget / max(len(reference.inputs), 1) for question, budget in BUDGET.items()}
    bins = Bins.of(reference)
    index, outside = _numpy(bins.stability(sample.shares, sample.rows)), _numpy(bins.outside(sample.shares))
    joint = None if reference.joint is None else JointComparison.of(reference, reference.joint, sample)
    given = None
    if joint is not None and not is_folded(len(reference.inputs)):
        given = joint.given_others()
    return Findings(
        level=(asked.level() < share["level"]) & (np.abs(asked.difference) >= LEAST_DIFFERENCE),
        given=np.zeros(len(reference.inputs), dtype=np.bool_) if given is None else given.alarm,
        spread=(asked.spread() < share["spread"]) & asked.spread_matters(),
        shape=(_shape(reference, sample, index, _numpy(bins.used())) < share["shape"])
        & (index >= LEAST_INDEX)
        & ~asked.sparse,
        range=(_range(reference, sample.rows, outside) < share["range"]) & (outside >= LEAST_OUTSIDE),
        difference=asked.difference,
        given_difference=None if given is None else given.difference,
        ratio=asked.ratio,
        psi=index,
        outside=outside,
        joint=joint is not None and joint.chance < BUDGET["joint"],
        distance=None if joint is None else joint.squared**0.5,
        chance=None if joint is None else joint.chance,
    )


@dataclass(frozen=True)
class _Asked:
    """One input at a time: what is known and what was seen, (inputs,) each."""

    reference: Reference
    rows: int
    deviation: Floats  # of the federation; 1 where the input never varied
    within: Floats
    between: Floats
    seen_difference: Floats
    variance: Floats
    kurtosis: Floats
    design: Floats
    sparse: Flags

    @staticmethod
    def of(reference: Reference, sample: Sample) -> _Asked:
        known, own = reference.inputs, sample.inputs
        deviation = np.array([one.deviation for one in known])
        return _Asked(
            reference=reference,
            rows=sample.rows,
            deviation=np.where(deviation > 0, deviation, 1.0),
            within=np.array([one.within for one in known]),
            between=np.array([one.between for one in known]),
            seen_difference=own.mean.numpy() - np.array([one.centre for one in known]),
            variance=own.variance.numpy(),
            kurtosis=own.kurtosis.numpy(),
            design=own.design.numpy(),
            sparse=np.array([one.sparse for one in known], dtype=np.bool_),
        )

    @property
    def difference(self) -> Floats:
        return self.seen_difference / self.deviation

    @property
    def ratio(self) -> Floats:
        known = self.within > 0
        return np.where(known, np.sqrt(self.variance) / np.where(known, self.within, 1.0), 1.0)

    def level(self) -> Floats:
        natural = (1 + 1 / self.reference.sites) * self.between**2 + (SLACK * self.deviation) ** 2
        # Its own variance where that is larger: a rare value in a few rows is no shift.
        sampling = np.maximum(self.within**2, self.variance) * self.design / self.rows
        total = natural + sampling
        freedom = _satterthwaite(self.reference.freedom, natural, total)
        freedom = np.where(self.sparse, min(self.reference.freedom, _SPARSE_FREEDOM), freedom)
        return np.asarray(2 * stats.t.sf(np.abs(self.seen_difference) / np.sqrt(total), freedom))

    def spread(self) -> Floats:
        """Of the log variance. That of a sparse input follows from its mean; one row has none."""
        asks = (self.within > 0) & ~self.sparse & (self.rows > 1)
        known = self.reference.inputs
        usual = np.array([one.log_variance for one in known])
        between = np.array([one.log_variance_between for one in known])
        natural = (1 + 1 / self.reference.sites) * between**2 + (2 * SLACK) ** 2
        sampling = (np.maximum(self.kurtosis, 3.0) - 1) * self.design / self.rows
        least = 0.5 / self.rows  # a column that is constant here: as if half a row differed
        seen = np.log(np.maximum(self.variance, least * self.within**2 + 1e-300))
        freedom = _satterthwaite(self.reference.freedom, natural, natural + sampling)
        chance = 2 * stats.t.sf(np.abs(seen - usual) / np.sqrt(natural + sampling), freedom)
        return np.where(asks, chance, 1.0)

    def spread_matters(self) -> Flags:
        return np.asarray((self.ratio >= LEAST_RATIO) | (self.ratio <= 1 / LEAST_RATIO))


def _satterthwaite(freedom: float, natural: Floats, total: Floats) -> Floats:
    """Where sampling error outweighs, the uncertainty of the natural spread matters less."""
    return np.minimum(freedom * (total / natural) ** 2, MOST_FREEDOM)


def _numpy(values: Tensor) -> Floats:
    return np.asarray(values.double().numpy())


def _shape(reference: Reference, sample: Sample, index: Floats, bins: Floats) -> Floats:
    """The index of a natural difference is at most as variable as a squared normal deviate: t² covers it."""
    usual = np.array([one.instability for one in reference.inputs])
    sampling = np.maximum(bins - 1, 1) * sample.inputs.design.numpy() / sample.rows
    scale = (1 + 1 / reference.sites) * usual + SLACK**2 + sampling
    return np.asarray(2 * stats.t.sf(np.sqrt(np.maximum(index, 0.0) / scale), reference.freedom))


def _range(reference: Reference, rows: int, outside: Floats) -> Floats:
    """Twice the largest share that any site had; with few sites there is more to come than was seen."""
    unseen = max(0.03 / reference.sites, 0.001)
    tolerated = np.array([min(max(2 * one.outside, unseen), 1.0) for one in reference.inputs])
    return np.asarray(stats.binom.sf(np.round(outside * rows) - 1, rows, tolerated))
