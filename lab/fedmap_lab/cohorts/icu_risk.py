"""The known risk of death in the synthetic intensive-care cohort, as a function of the file's own columns.

Channels (resuscitation, sedation and routine drugs; organ failure and harmless codes; coma, shock, breathing)
stand between thousands of columns and the risk. It draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmap_lab.cohorts.icu_vocabulary import Vocabulary
from fedmap_lab.cohorts.site_plan import FloatArray, own_risk

DEVIATION = (0.70, 0.68, 0.42)
"""SD over hospitals of each direction's coefficient."""


@dataclass(frozen=True)
class Channels:
    """What the risk function looks at, each near mean 0 and SD 1 over the cohort."""

    resuscitation: FloatArray
    sedation: FloatArray
    routine: FloatArray
    failure: FloatArray
    harmless: FloatArray
    coma: FloatArray
    shock: FloatArray
    breathing: FloatArray


def shared_logit(x: Channels) -> FloatArray:
    """What all hospitals have in common."""
    return np.asarray(
        x.coma * (0.80 - 0.30 * np.tanh(x.sedation))  # a sedated patient's low score says less
        + 0.38 * x.resuscitation
        + 0.10 * x.sedation
        - 0.28 * x.routine
        + 0.28 * x.failure
        - 0.18 * x.harmless
        + 0.55 * np.logaddexp(0.0, 3.0 * x.shock) / 3.0
        + 0.28 * np.tanh(x.shock) * np.tanh(x.coma)
        + 0.32 * np.abs(x.breathing)
    )


def hospital_deviation(x: Channels, risk: tuple[float, ...]) -> FloatArray:
    """What is the hospital's own: what low coma scores, circulation and vasopressors mean there."""
    directions = (
        0.9 * x.coma - 0.4 * x.sedation,
        0.6 * x.shock - 0.8 * x.breathing,
        0.7 * x.resuscitation - 0.7 * x.failure,
    )
    return own_risk(risk, DEVIATION, directions)


def channels(drugs: FloatArray, codes: FloatArray, signs: FloatArray, vocabulary: Vocabulary) -> Channels:
    """Fixed units: the constants are those of a large sample, no hospital's data enter them."""
    ordered, coded = np.log1p(drugs), np.log1p(codes)
    eyes, motor, verbal, heart_rate, systolic, respiration, saturation = signs.T
    return Channels(
        resuscitation=(ordered @ vocabulary.resuscitation - 2.2) / 2.6,
        sedation=(ordered @ vocabulary.sedation - 2.4) / 2.6,
        routine=(ordered @ vocabulary.routine - 3.5) / 3.6,
        failure=(coded @ vocabulary.failure - 1.5) / 2.0,
        harmless=(coded @ vocabulary.harmless - 3.2) / 2.9,
        coma=(12.0 - (eyes + motor + verbal)) / 2.9,
        shock=(heart_rate / systolic - 0.72) / 0.19,
        breathing=(respiration - 20) / 5 - (saturation - 95.5) / 3,
    )
