"""What a bundle knows of the federation's inputs: pooled shares, means and spreads; never a row.

All in the model's own units: after the plan's transform and the pooled scaler, so that 1 is one standard
deviation of the federation. Shares come from counts in which no site gave a small cell away.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, MinLen

from common.plan.sections import Section

NotNegative = Annotated[float, Ge(0)]


class InputReference(Section):
    """One input of the model over the federation's training rows."""

    name: str
    mean: float
    deviation: NotNegative
    """Of all rows together."""
    between: NotNegative
    """Standard deviation of the sites' own means around the pooled one, sampling error taken off."""
    edges: tuple[float, ...]
    """Inner edges of the histogram, rising; the first and the last bin are open."""
    shares: Annotated[tuple[NotNegative, ...], MinLen(1)]
    """Share of rows in each bin; one more than there are edges."""


class JointReference(Section):
    """Moments of the inputs together, of a fixed folding of them where there are many."""

    dimensions: Annotated[int, Ge(1)]
    mean: tuple[float, ...]
    within: tuple[tuple[float, ...], ...]
    """Covariance of rows inside a site."""
    between: tuple[tuple[float, ...], ...]
    """Covariance of the sites' means, sampling error taken off."""


class Reference(Section):
    """The federation's inputs, as a site's are compared with them."""

    sites: Annotated[int, Gt(0)]
    rows: Annotated[int, Gt(0)]
    inputs: tuple[InputReference, ...]
    joint: JointReference | None = None
