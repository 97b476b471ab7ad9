"""Figures over sites, as a release states them: an estimate with its interval, a bin of a calibration curve.

Values only; how they are made is `meta_analysis` and `calibration_bins`.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, MaxLen

from fedmap.study.plan.sections import Section

Share = Annotated[float, Ge(0), Le(1)]
Short = Annotated[str, MaxLen(500)]
Count = Annotated[int, Ge(0)]


class Estimate(Section):
    """A figure with its 95 % interval; no interval where the sites are too few for one."""

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    sites: Annotated[int, Gt(0)]
    note: Short = ""


class CalibrationBin(Section):
    """Predicted against observed risk of the global model, over all sites."""

    predicted: Share
    observed: Share
    low: Share
    high: Share
    rows: Count
