"""The reference's histograms as tensors, and a site's shares compared with them: PSI, Wasserstein, outside.

Inputs have different numbers of bins. Rows of the tensors are as long as the longest; what is beyond the last
bin of an input is empty on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmap.shift.pooled_histograms import stability_index
from fedmap.shift.reference import Reference


@dataclass(frozen=True)
class Bins:
    """Of all inputs."""

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
