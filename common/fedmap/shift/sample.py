"""What is gathered of a site's rows as they stream by: power sums, neighbours' products, counts; no row.

Sums are taken about the federation's centre and in its units, where float64 loses nothing that matters.
Rows of one patient usually stand next to each other and are alike; the likeness of neighbouring rows tells
how many rows the site really has (`design`). Inputs have different numbers of bins (`Bins`): rows of the
tensors are as long as the longest, and what is beyond the last bin of an input is empty on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.errors import ModelError
from fedmap.shift.pooled_histograms import stability_index
from fedmap.shift.reference import Reference
from fedmap.shift.told.cells import histogram
from fedmap.shift.told.folding import fold, is_folded


@dataclass(frozen=True)
class Bins:
    """The histograms of all inputs, and a site's shares compared with them: PSI, Wasserstein, outside."""

    edges: Tensor  # (inputs, most edges), infinite beyond the last
    shares: Tensor  # (inputs, most edges + 1)
    last: Tensor  # (inputs, 1) index of the last bin

    @staticmethod
    def of(reference: Reference) -> Bins:
        known = reference.inputs
        most = max((len(one.edges) for one in known), default=0)
        edges = [(*one.edges, *[float("inf")] * (most - len(one.edges))) for one in known]
        shares = [(*one.shares, *[0.0] * (most + 1 - len(one.shares))) for one in known]
        return Bins(
            edges=torch.tensor(edges, dtype=torch.float64).view(len(known), most),
            shares=torch.tensor(shares, dtype=torch.float64).view(len(known), most + 1),
            last=torch.tensor([[len(one.edges)] for one in known], dtype=torch.int64).view(len(known), 1),
        )

    def used(self) -> Tensor:
        """How many bins of each input have rows in the federation."""
        return (self.shares > 0).sum(1)

    def stability(self, shares: Tensor, rows: int) -> Tensor:
        return stability_index(shares, self.shares, rows)

    def outside(self, shares: Tensor) -> Tensor:
        """Share of rows in the two open bins."""
        return shares[:, 0] + shares.gather(1, self.last)[:, 0]

    def area(self, shares: Tensor) -> Tensor:
        """Between the distribution functions, from the first edge to the last, in the inputs' own units."""
        gaps = (shares.cumsum(1) - self.shares.cumsum(1)).abs()[:, :-1]  # at each edge
        widths = self.edges.diff(dim=1)
        widths = torch.where(widths.isfinite(), widths, 0.0)
        return ((gaps[:, 1:] + gaps[:, :-1]) / 2 * widths).sum(1)


LAGS = 4  # neighbours that may be of the same patient
_LARGEST = 1e9  # in units of the federation: beyond it the fourth power would drown everything


@dataclass(frozen=True)
class Moments:
    """Of some columns, (columns,) each."""

    mean: Tensor
    variance: Tensor
    kurtosis: Tensor  # E(x − mean)⁴ / variance²; 3 for a normal column or one that does not vary
    design: Tensor  # by how much likeness of neighbours multiplies the sampling variance of a mean


@dataclass(frozen=True)
class Sample:
    """A site's rows in sums."""

    rows: int
    inputs: Moments
    joint: Moments
    shares: Tensor  # (inputs, most bins) of the reference's bins; zero beyond an input's last


class MomentSums:
    """Power sums of columns, block by block."""

    def __init__(self, centre: Tensor, unit: Tensor) -> None:
        self._centre, self._unit = centre, unit
        self._rows = 0
        self._powers = torch.zeros(4, len(centre), dtype=torch.float64)
        self._lagged = torch.zeros(LAGS, len(centre), dtype=torch.float64)
        self._last = torch.zeros(0, len(centre), dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        z = ((values - self._centre) / self._unit).clamp(-_LARGEST, _LARGEST)
        self._rows += len(z)
        power = torch.ones_like(z)
        for k in range(4):
            power = power * z
            self._powers[k] += power.sum(0)
        joined = torch.cat([self._last, z])
        old = len(self._last)
        for lag in range(1, min(LAGS, len(joined) - 1) + 1):
            begin = max(old, lag)
            self._lagged[lag - 1] += (joined[begin:] * joined[begin - lag : len(joined) - lag]).sum(0)
        self._last = joined[-LAGS:].clone()

    def moments(self) -> Moments:
        rows = max(self._rows, 1)
        first, second, third, fourth = self._powers / rows
        variance = (second - first.square()).clamp(min=0)
        central = fourth - 4 * first * third + 6 * first.square() * second - 3 * first**4
        # Rounding leaves a trace of variance in a constant column that is far from the centre.
        varies = variance > 1e-12 * (1 + first.square())
        safe = torch.where(varies, variance, 1.0)
        kurtosis = torch.where(varies, (central / safe.square()).clamp(min=1), 3.0)
        alike = torch.where(varies, (self._lagged / rows - first.square()) / safe, 0.0)
        alike = torch.where(alike > 1 / rows**0.5, alike.clamp(max=1), 0.0)  # below is mostly chance
        unbiased = variance * (rows / max(rows - 1, 1)) * self._unit.square()
        return Moments(
            mean=self._centre + self._unit * first,
            variance=torch.where(varies, unbiased, 0.0),
            kurtosis=kurtosis,
            design=1 + 2 * alike.sum(0),
        )


class Gathering:
    """Adds up blocks of scaled rows for one reference."""

    def __init__(self, reference: Reference) -> None:
        known = reference.inputs
        self._width = len(known)
        self._rows = 0
        centre = torch.tensor([one.centre for one in known], dtype=torch.float64)
        unit = torch.tensor([one.within or 1.0 for one in known], dtype=torch.float64)
        self._sums = MomentSums(centre, unit)
        self._folded: MomentSums | None = None
        if is_folded(self._width) and reference.joint is not None:
            spread = torch.tensor(reference.joint.within, dtype=torch.float64).diagonal().sqrt()
            mean = torch.tensor(reference.joint.mean, dtype=torch.float64)
            self._folded = MomentSums(mean, torch.where(spread > 0, spread, 1.0))
        self._edges = Bins.of(reference).edges
        self._counts = torch.zeros(self._width, self._edges.shape[1] + 1, dtype=torch.float64)

    def add(self, features: Tensor) -> None:
        if features.dim() != 2 or features.shape[1] != self._width:
            raise ModelError(
                f"rows of shape {tuple(features.shape)} cannot be compared with {self._width} inputs",
                hint="use rows in the layout of the bundle's plan",
            )
        if not bool(torch.isfinite(features).all()):
            raise ModelError(
                "rows with values that are not finite cannot be compared",
                hint="leave out the rows that cannot be predicted",
            )
        if not len(features):
            return
        exact = features.double()
        self._rows += len(exact)
        self._sums.add(exact)
        if self._folded is not None:
            self._folded.add(fold(exact))
        self._counts += histogram(exact, self._edges)

    def sample(self) -> Sample:
        inputs = self._sums.moments()
        joint = inputs if self._folded is None else self._folded.moments()
        return Sample(self._rows, inputs, joint, self._counts / max(self._rows, 1))
