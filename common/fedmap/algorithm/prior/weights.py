"""How much a site's θ_k counts: log ω_k under four named rules, and their normalisation.

The paper's ω_k = P(Z_k|θ_k)·exp(−R) underflows for any real N_k, and in log space its smallest site takes
everything, so sites send log ω_k and the default is the log posterior *per sample*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmap.algorithm.settings import WeightingRule
from fedmap.errors import TrainingError


def log_weight(rule: WeightingRule, loss: float, penalty: float, rows: int) -> float:
    """log ω_k from L (summed over rows), R and N_k."""
    if rows < 1 or not (math.isfinite(loss) and math.isfinite(penalty)):
        raise TrainingError(
            f"a weight needs finite loss and penalty over at least one row (rows: {rows})",
            hint="the local fit diverged or had no training rows; it must not be aggregated",
        )
    match rule:
        case "per_sample":
            return -(loss / rows + penalty)
        case "literal":
            return -loss - penalty
        case "reference":
            return -(loss / rows + penalty / rows)
        case "sample_count":
            return math.log(rows)


def normalise(log_weights: Sequence[float]) -> NDArray[np.float64]:
    """ω̄_k = ω_k / Σ ω_j by log-sum-exp in float64; they sum to one and never underflow all together."""
    logs = np.asarray(log_weights, dtype=np.float64)
    if logs.size == 0 or not np.isfinite(logs).all():
        raise TrainingError(
            f"cannot normalise {logs.size} log-weights: none given, or one is not finite",
            hint="reject updates without a finite log ω before aggregation",
        )
    shifted = np.exp(logs - logs.max())
    return np.asarray(shifted / shifted.sum(), dtype=np.float64)
