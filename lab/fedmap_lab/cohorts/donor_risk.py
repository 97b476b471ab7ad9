"""The known risk of iron deficiency in the synthetic donor cohort, as a function of the file's own columns.

It draws nothing and knows no site but by the coordinates of its deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from fedmap_lab.cohorts.site_plan import FloatArray, own_risk

DEVIATION = (0.65, 0.65, 0.65)
"""Size of one unit of a site's coordinate along each direction."""


@dataclass(frozen=True)
class Donors:
    """What the risk function looks at, near mean 0 and SD 1 in Europeans of either sex."""

    female: FloatArray
    age: FloatArray
    haemoglobin: FloatArray
    cell_haemoglobin: FloatArray
    concentration: FloatArray
    width: FloatArray
    platelets: FloatArray
    neutrophils: FloatArray


def shared_logit(x: Donors) -> FloatArray:
    """What all donor populations have in common."""
    small = np.logaddexp(0.0, -3.0 * x.cell_haemoglobin) / 3.0  # nothing to see above the usual content
    wide = np.tanh(1.2 * x.width)
    inflamed = special.expit(3.0 * (x.neutrophils + 0.5 * x.platelets - 0.6))  # ferritin rises, and hides it
    menstruating = x.female * special.expit((50 - x.age) / 2.0)
    return np.asarray(
        (1.5 * small + 1.2 * wide * (0.2 + small)) * (1 - 0.8 * inflamed)
        - 0.35 * x.concentration
        + 1.1 * menstruating
        - x.haemoglobin * (0.2 + 0.7 * menstruating)
        + 0.6 * x.platelets * (2 * menstruating - 1) * (1 - inflamed)
        + 0.6 * (1 - x.female) * wide * np.tanh((x.age - 50) / 10)
        - 0.4 * np.square(np.clip(x.haemoglobin, -2, 2)) * (1 - x.female)
    )


def site_deviation(x: Donors, risk: tuple[float, ...]) -> FloatArray:
    """What is the site's own: how much small cells, wide cells and low haemoglobin mean there."""
    directions = (
        -x.cell_haemoglobin,
        x.width + 0.3 * x.platelets,
        -x.haemoglobin - 0.3 * x.concentration,
    )
    return own_risk(risk, DEVIATION, directions)


def standardise(frame: pd.DataFrame) -> Donors:
    """The fixed units of the risk function: no site's data enter them."""

    def column(name: str) -> FloatArray:
        return frame[name].to_numpy(dtype=np.float64)

    female = np.asarray(frame["Sex"] == "F", dtype=np.float64)
    return Donors(
        female=female,
        age=column("Age"),
        haemoglobin=(column("HGB_g_L") - np.where(female > 0, 134, 149)) / 10,
        cell_haemoglobin=(column("MCH_pg") - 30.2) / 1.6,
        concentration=(column("MCHC_g_dL") - 33.5) / 0.7,
        width=(column("RDW_SD_fL") - 43) / 2.9,
        platelets=(column("PLT_10_9_L") - 245) / 52,
        neutrophils=(column("NEUT_10_9_L") - 3.5) / 1.1,
    )
