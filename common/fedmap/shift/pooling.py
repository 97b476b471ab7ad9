"""The sites' terms become the federation's reference: sites in sorted order, float64, no scoring libraries.

Two sites at least are needed to say how much sites differ. Sites that sent nothing (fewer rows than their
floor) do not count.

How much sites differ by nature is told cautiously. With three sites a variance between them is known to a
factor of ten; whoever takes it at its word raises false alarms. So each is drawn towards the mean over all
inputs (or directions), which is itself taken at its upper 80 % limit: with few sites the limit is far
above the mean and a site has to differ much to stand out, with many it is close and each input speaks for
itself. The prior weighs as much as two sites. Calibrated on synthetic federations of 3 to 185 sites in
`fedmap_lab.bench.shift_calibration`; estimating the prior's weight too (by moments, as for gene
expression, or by marginal likelihood) gave several times the false alarms with few sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.errors import TrainingError
from fedmap.shift.pooled_histograms import PooledHistogram, pool_histograms
from fedmap.shift.reference import InputReference, JointReference, Reference
from fedmap.shift.told.terms import ReferenceTerms

LEAST_SITES = 2
_TINY = torch.finfo(torch.float64).tiny
_USUAL_KURTOSIS = 3.0  # in the sampling error of a log variance; small beside the spread between sites


def pool_reference(by_site: Mapping[str, ReferenceTerms], names: Sequence[str]) -> Reference:
    """The reference of all sites; `names` are the model's inputs in order."""
    ordered = [by_site[site] for site in sorted(by_site) if by_site[site].rows > 0]
    _check(ordered, names)
    rows = torch.stack([terms.rows for terms in ordered])  # (sites,)
    moments = _moments(ordered, rows)
    histograms = pool_histograms(ordered)
    return Reference(
        sites=len(ordered),
        rows=int(rows.sum()),
        freedom=posterior_freedom(len(ordered)),
        inputs=tuple(
            _input(name, bool(ordered[0].scaled[j]), moments, histograms[j], j)
            for j, name in enumerate(names)
        ),
        joint=_joint(ordered, rows),
    )


def _check(ordered: Sequence[ReferenceTerms], names: Sequence[str]) -> None:
    if len(ordered) < LEAST_SITES:
        raise TrainingError(
            f"{len(ordered)} site(s) described their inputs: too few to say how much sites differ",
            hint="the bundle goes without a shift check; more sites would give one",
        )
    same_plan = "check that all sites approved the same study plan"
    if any(len(terms.mean) != len(names) for terms in ordered):
        raise TrainingError("a site's reference terms are not of the model's inputs", hint=same_plan)
    if any(not torch.equal(terms.scaled, ordered[0].scaled) for terms in ordered):
        raise TrainingError("the sites do not agree on which inputs are scaled", hint=same_plan)


@dataclass(frozen=True)
class _Moments:
    """Over sites, each (inputs,)."""

    mean: Tensor
    deviation: Tensor
    centre: Tensor
    within: Tensor
    between: Tensor
    log_variance: Tensor
    log_variance_between: Tensor


def _moments(ordered: Sequence[ReferenceTerms], rows: Tensor) -> _Moments:
    sites = len(ordered)
    means = torch.stack([terms.mean for terms in ordered])  # (sites, inputs)
    scatters = torch.stack([terms.m2 for terms in ordered])
    mean = (rows.unsqueeze(1) * means).sum(0) / rows.sum()
    around = (rows.unsqueeze(1) * (means - mean).square()).sum(0)
    within = scatters.sum(0) / (rows.sum() - sites)  # variance inside sites
    varies = within > 0
    variance = (scatters.sum(0) + around) / (rows.sum() - 1)  # of all rows
    relative = torch.where(varies, means.var(0) / variance.clamp(min=_TINY), 0.0)
    between = (shrink_variances(relative, sites) * variance - within * (1 / rows).mean()).clamp(min=0)
    between = torch.where(varies, between, means.var(0))
    # A site in which the input does not vary says nothing of its spread where it does.
    logs = torch.where(scatters > 0, scatters / (rows.unsqueeze(1) - 1), within).clamp(min=_TINY).log()
    spread = shrink_variances(torch.where(varies, logs.var(0), 0.0), sites)
    spread = (spread - (_USUAL_KURTOSIS - 1) * (1 / rows).mean()).clamp(min=0)
    return _Moments(
        mean=mean,
        deviation=variance.sqrt(),
        centre=means.mean(0),
        within=within.sqrt(),
        between=between.sqrt(),
        log_variance=torch.where(varies, logs.mean(0), 0.0),
        log_variance_between=spread.sqrt(),
    )


def _input(name: str, scaled: bool, moments: _Moments, histogram: PooledHistogram, j: int) -> InputReference:
    return InputReference(
        name=name,
        scaled=scaled,
        edges=histogram.edges,
        shares=histogram.shares,
        outside=histogram.outside,
        instability=histogram.instability,
        **{field: float(values[j]) for field, values in vars(moments).items()},
    )


def _joint(ordered: Sequence[ReferenceTerms], rows: Tensor) -> JointReference | None:
    means = torch.stack([terms.joint_mean for terms in ordered])  # (sites, dimensions)
    scatter = torch.stack([terms.joint_scatter for terms in ordered]).sum(0)
    within = scatter / (rows.sum() - len(rows))
    if not bool((within.diagonal() > 0).any()):
        return None
    offsets = means - (rows.unsqueeze(1) * means).sum(0) / rows.sum()
    everything = (scatter + (rows.unsqueeze(1) * offsets).T @ offsets) / (rows.sum() - 1)
    between = shrink_covariance(means, everything, within * (1 / rows).mean())
    return JointReference(
        dimensions=means.shape[1],
        mean=tuple(means.mean(0).tolist()),
        within=_matrix(within),
        between=_matrix(between),
    )


def _matrix(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())


PRIOR_FREEDOM = 2.0
_LIMIT = 0.8416  # normal quantile of the upper 80 % limit
_LEAST_EIGENVALUE = 1e-5  # of a correlation matrix: directions below hold no rows


def posterior_freedom(sites: int) -> float:
    """Degrees of freedom with which a difference between that many sites is known."""
    return PRIOR_FREEDOM + sites - 1


def shrink_variances(variances: Tensor, sites: int) -> Tensor:
    """(inputs,) variances over sites, each in units in which the inputs can be compared."""
    known = variances[variances > 0]
    prior = float(known.mean()) * upper_factor(sites - 1) if len(known) else 0.0
    return (PRIOR_FREEDOM * prior + (sites - 1) * variances) / posterior_freedom(sites)


def shrink_covariance(means: Tensor, rows: Tensor, sampling: Tensor) -> Tensor:
    """Covariance between sites from their (sites, dimensions) means, the `sampling` covariance taken off.

    The prior is a multiple of `rows`, the covariance of all sites' rows together: sites differ as rows do,
    only less. One direction in which sites are worlds apart then counts as at most 1 among the others.
    """
    sites, basis = len(means), _whitening(rows)  # (dimensions, rank)
    centred = (means - means.mean(0)) @ basis
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    values = values.clamp(min=0)
    usual = values.sum() / ((sites - 1) * basis.shape[1])
    total = PRIOR_FREEDOM * usual * upper_factor(sites - 1) + values
    back = rows @ basis @ vectors  # the inverse of the whitening
    spread = (back * (total / posterior_freedom(sites))) @ back.T
    return _positive((spread + spread.T) / 2 - sampling)


def _positive(matrix: Tensor) -> Tensor:
    """The nearest covariance."""
    values, vectors = torch.linalg.eigh(matrix)
    mended: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
    return (mended + mended.T) / 2


def upper_factor(freedom: int) -> float:
    """Upper 80 % limit of a variance over its estimate (Wilson and Hilferty's χ²)."""
    part = 2 / (9 * freedom)
    return float((1 - part - _LIMIT * part**0.5) ** -3) if freedom > 1 else 15.6  # exact for one degree


def _whitening(rows: Tensor) -> Tensor:
    """Columns in whose coordinates rows have covariance 1; directions without rows left out."""
    deviation = rows.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(deviation > 0, 1 / deviation.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    values, vectors = torch.linalg.eigh(rows * inverse * inverse.unsqueeze(1))
    kept = values > _LEAST_EIGENVALUE
    basis: Tensor = inverse.unsqueeze(1) * vectors[:, kept] / values[kept].sqrt()
    return basis
