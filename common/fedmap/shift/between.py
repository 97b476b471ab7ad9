"""How much sites differ by nature, from few sites: variances and a covariance, cautiously.

With three sites a variance between them is known to a factor of ten; whoever takes it at its word raises
false alarms. So each is drawn towards the mean over all inputs (or directions), which is itself taken at its
upper 80 % limit: with few sites the limit is far above the mean and a site has to differ much to stand out,
with many it is close and each input speaks for itself. The prior weighs as much as two sites. Calibrated on
synthetic federations of 3 to 185 sites in `fedmap_lab.bench.shift_calibration`; estimating the prior's
weight too (by moments, as for gene expression, or by marginal likelihood) gave several times the false
alarms with few sites.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
