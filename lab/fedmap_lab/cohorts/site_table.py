"""One synthetic site as its generator hands it over: the file's columns, and what the lab measures on them.

The known risk stays in memory, for tests and oracles; it is never part of a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmap_lab.cohorts.site_plan import FloatArray, PlannedSite


@dataclass(frozen=True)
class SiteTable:
    """Rows of one site. The last three speak of the usable rows only, in the order of the file."""

    site: PlannedSite
    frame: pd.DataFrame
    usable: NDArray[np.bool_]
    candidates: pd.DataFrame
    """Numeric columns among which the most predictive feature is sought."""
    positive: NDArray[np.bool_]
    risk: FloatArray
    """The known linear predictor, without the site's intercept."""
