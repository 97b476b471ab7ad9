"""What a bundle knows of the federation's inputs: pooled shares, means and spreads; never a row.

All in the model's own units: after the plan's transform and the pooled scaler, so that 1 is one standard
deviation of the federation. Shares come from counts in which no site gave a small cell away. Whatever says
how much sites differ is drawn towards the other inputs where sites are few (`pooling`).
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

from fedmap.study.plan.sections import Section

NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]


class InputReference(Section):
    """One input of the model over the federation's training rows."""

    name: str
    scaled: bool
    """False for indicators, and for numbers that the plan leaves in their own unit."""
    mean: float
    deviation: NotNegative
    """Of all rows together."""
    centre: float
    """Mean of the sites' own means: what a new site is expected to have."""
    within: NotNegative
    """Standard deviation of rows inside a site."""
    between: NotNegative
    """Standard deviation of the sites' own means, sampling error taken off."""
    log_variance: float
    """Mean over sites of the logarithm of the variance inside them; 0 where it never varies."""
    log_variance_between: NotNegative
    """Standard deviation of that logarithm over sites, sampling error taken off."""
    edges: Annotated[tuple[float, ...], MinLen(1)]
    """Inner edges of the histogram, rising; the first and the last bin are open."""
    shares: Annotated[tuple[NotNegative, ...], MinLen(2)]
    """Share of rows in each bin; one more than there are edges."""
    outside: Share
    """The largest share of its rows that any site can have had in the two open bins."""
    instability: NotNegative
    """Population stability index of a usual site against the pool, sampling error taken off."""

    @property
    def indicator(self) -> bool:
        """Whether it is 0 or 1: its mean is then a share, and no row can be far out."""
        return not self.scaled and self.edges[0] >= 0 and self.edges[-1] <= 1.25

    @property
    def sparse(self) -> bool:
        """Whether most rows have the same value or nearly so: an indicator, the count of a rare drug."""
        return self.indicator or max(self.shares) >= 0.5


class JointReference(Section):
    """Moments of the inputs together, of a fixed folding of them where there are many."""

    dimensions: Annotated[int, Ge(1)]
    mean: tuple[float, ...]
    """Mean of the sites' own means."""
    within: tuple[tuple[float, ...], ...]
    """Covariance of rows inside a site."""
    between: tuple[tuple[float, ...], ...]
    """Covariance of the sites' means, sampling error taken off."""


class Reference(Section):
    """The federation's inputs, as a site's are compared with them."""

    sites: Annotated[int, Gt(0)]
    rows: Annotated[int, Gt(0)]
    freedom: Annotated[float, Gt(0)]
    """Degrees of freedom with which the differences between sites are known."""
    inputs: tuple[InputReference, ...]
    joint: JointReference | None = None
