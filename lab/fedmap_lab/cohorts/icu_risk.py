"""The known risk of death in the synthetic intensive-care cohort, and the frozen vocabulary it speaks of.

1,411 drug names are many ways to write few ingredients, with a Zipf-like popularity, as in real order
systems; they and 686 diagnosis codes go with conditions, and most tell a little of how ill a patient is. The
vocabulary is the same for every seed: seeds change hospitals and patients, not what a column means. Channels
(drugs; codes; coma, shock, breathing) stand between thousands of columns and the risk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmap_lab.cohorts.site_plan import FloatArray, own_risk

DRUGS, INGREDIENTS, CODES, CONDITIONS = 1411, 160, 686, 12
NEURO = 0
"""The condition that takes consciousness by itself."""
VERSION = 1


@dataclass(frozen=True)
class Vocabulary:
    """What the columns mean. A channel is a weighted sum over columns that the risk function looks at."""

    ingredient_of: NDArray[np.intp]  # (drugs,)
    name_weight: FloatArray  # (drugs,) log popularity of a name among those of its ingredient
    ingredient_weight: FloatArray  # (conditions, ingredients) log popularity
    severity: FloatArray  # (ingredients,) how much more the gravely ill get of it
    resuscitation: FloatArray  # (drugs,) channel weights
    sedation: FloatArray  # (drugs,)
    routine: FloatArray  # (drugs,)
    code_weight: FloatArray  # (conditions, codes) log popularity
    code_severity: FloatArray  # (codes,)
    failure: FloatArray  # (codes,)
    harmless: FloatArray  # (codes,)


def frozen_vocabulary() -> Vocabulary:
    rng = np.random.default_rng([VERSION, DRUGS, CODES])
    ingredient_of = _names_of_ingredients(rng)
    popularity = -1.0 * np.log(np.arange(INGREDIENTS) + 5.0)
    # Most ingredients say something of how ill a patient is; no single one says much.
    order = rng.permutation(INGREDIENTS)
    resuscitation = _channel(order[:30], INGREDIENTS, rng)
    sedation = _channel(order[30:50], INGREDIENTS, rng)
    routine = _channel(order[50:120], INGREDIENTS, rng)
    severity = 0.9 * resuscitation + 0.8 * sedation - 0.7 * routine

    code_popularity = -1.05 * np.log(np.arange(CODES) + 4.0)
    belongs = rng.integers(CONDITIONS, size=CODES)
    code_weight = np.tile(code_popularity, (CONDITIONS, 1))
    code_weight[belongs, np.arange(CODES)] += 2.5
    codes = rng.permutation(CODES)
    failure = _channel(codes[:200], CODES, rng)
    harmless = _channel(codes[200:500], CODES, rng)
    return Vocabulary(
        ingredient_of=ingredient_of,
        name_weight=-1.5 * np.log(_rank_within(ingredient_of) + 1.0),
        ingredient_weight=popularity + 0.6 * rng.standard_normal((CONDITIONS, INGREDIENTS)),
        severity=severity,
        resuscitation=resuscitation[ingredient_of],
        sedation=sedation[ingredient_of],
        routine=routine[ingredient_of],
        code_weight=code_weight,
        code_severity=0.7 * failure - 0.6 * harmless,
        failure=failure,
        harmless=harmless,
    )


def _names_of_ingredients(rng: np.random.Generator) -> NDArray[np.intp]:
    """Ingredient of each drug column: each has a name, common ones have more; columns in any order."""
    share = 1.0 / np.sqrt(np.arange(INGREDIENTS) + 3.0)
    further = rng.choice(INGREDIENTS, size=DRUGS - INGREDIENTS, p=share / share.sum())
    return rng.permutation(np.concatenate([np.arange(INGREDIENTS), further]))


def _rank_within(group: NDArray[np.intp]) -> FloatArray:
    """0 for the first column of its group, 1 for the second, and so on."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], group[order])
    rank = np.empty(len(group))
    rank[order] = np.arange(len(group)) - starts
    return rank


def _channel(members: NDArray[np.intp], size: int, rng: np.random.Generator) -> FloatArray:
    weights = np.zeros(size)
    weights[members] = rng.uniform(0.4, 1.6, len(members))
    return weights


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
