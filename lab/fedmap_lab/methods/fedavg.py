"""FedAvg: train from the global model, average by sample count, one model for all.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017, Algorithm 1 (all sites take part in every round).

T2 and T3 by the convention for methods without a prior: T2 fine-tunes the global model, T3 uses it as it
is.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmap_lab.methods.scheme import SchemeMethod


@dataclass(frozen=True)
class FedAvg(SchemeMethod):
    """As every scheme is unless it says otherwise."""
