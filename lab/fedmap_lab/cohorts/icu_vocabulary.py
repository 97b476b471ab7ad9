"""The frozen vocabulary of the synthetic intensive-care cohort: 1,411 drug names and 686 diagnosis codes.

Names are many ways to write few ingredients, with a Zipf-like popularity, as in real order systems;
ingredients and codes go with conditions, and most tell a little of how ill a patient is. The vocabulary is
the same for every seed, as a study's frozen vocabulary is: seeds change hospitals and patients, not what a
column means.

It knows no hospital and no patient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmap_lab.cohorts.site_plan import FloatArray

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
