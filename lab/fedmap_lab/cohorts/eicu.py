"""Intensive-care cohort shaped like eICU: counts of drugs and diagnoses, seven signs, death in the unit.

Known structure: logit of death = hospital intercept + shared risk function + the hospital's own deviation in
three directions. Both are functions of the file's columns through a few channels (`icu_risk`). Hospitals
differ in case mix, in the names they order a drug by, in how much they code and chart, and in what a low coma
score or a vasopressor means there.

It writes no files. Every row is usable: the rules of the raw tables are the raw loader's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, special, stats

from fedmap_lab.cohorts.heterogeneity import HeterogeneityTargets, Spread
from fedmap_lab.cohorts.icu_risk import (
    CODES,
    CONDITIONS,
    DRUGS,
    INGREDIENTS,
    NEURO,
    channels,
    frozen_vocabulary,
    hospital_deviation,
    shared_logit,
)
from fedmap_lab.cohorts.site_plan import (
    FloatArray,
    PlannedSite,
    PlanSettings,
    Region,
    SiteTable,
    TierSizes,
    plan_sites,
    scaled_sites,
)

PLAN = PlanSettings(
    prefix="hospital",
    stream=3,
    tiers=(
        TierSizes(tier=1, sites=51, mean=689, sd=518, least=401, most=None),
        TierSizes(tier=2, sites=25, mean=168, sd=60, least=100, most=400),
        TierSizes(tier=3, sites=74, mean=48, sd=33, least=5, most=99),
    ),
    regions=(Region("Midwest", 0.37), Region("South", 0.32), Region("West", 0.23), Region("Northeast", 0.08)),
    covariates=3,
    risk=3,
    region_share=0.3,
    rate_on_case_mix=0.6,
)
DRUG_COLUMNS = tuple(f"drug_{i:04d}" for i in range(1, DRUGS + 1))
CODE_COLUMNS = tuple(f"dx_{i:03d}" for i in range(1, CODES + 1))
SIGNS = ("gcs_eyes", "gcs_motor", "gcs_verbal", "heart_rate", "systolic_bp", "respiration", "o2_saturation")
FEATURES = (*DRUG_COLUMNS, *CODE_COLUMNS, *SIGNS)
DEATHS = {1: (-2.75, 0.70), 2: (-2.90, 0.95), 3: (-3.45, 1.60)}
"""Median logit of the death rate and its SD over hospitals, by tier: small units are the most specialised."""
VOCABULARY = frozen_vocabulary()


plan = partial(plan_sites, PLAN)
"""The hospitals: `scale` changes their number, not their sizes."""


def targets(scale: float) -> HeterogeneityTargets:
    """As reported. 48 ± 53 rows cannot be had below 100 rows: the plan takes a spread that can."""
    return HeterogeneityTargets(
        tier_sites=scaled_sites(PLAN.tiers, scale),
        tier_rows={1: Spread(689, 518), 2: Spread(168, 60), 3: Spread(48, 53)},
        site_rows={},
        positive_share=Spread(0.07, 0.09),
        wasserstein=Spread(0.72, 0.75),
        regions=len(PLAN.regions),
    )


def death_share(tier: int, rate: float) -> float:
    centre, spread = DEATHS[tier]
    return float(special.expit(centre + spread * rate))


@dataclass(frozen=True)
class _Habits:
    """How one hospital works, before any patient: logs of what multiplies the usual frequencies."""

    conditions: FloatArray  # (conditions,) shares of its patients
    ingredients: FloatArray  # (ingredients,)
    name_share: FloatArray  # (drugs,) of the orders of the ingredient
    codes: FloatArray  # (codes,)


def _draw_habits(site: PlannedSite) -> _Habits:
    region = [r.name for r in PLAN.regions].index(site.region)
    regional = np.random.default_rng([site.entropy[0], PLAN.stream, 10_000 + region])
    own = site.rng(1)
    names = VOCABULARY.name_weight + 0.6 * regional.standard_normal(DRUGS) + 0.9 * own.standard_normal(DRUGS)
    share = np.exp(names)
    total = np.bincount(VOCABULARY.ingredient_of, weights=share, minlength=INGREDIENTS)
    return _Habits(
        conditions=special.softmax(0.6 * own.standard_normal(CONDITIONS)),
        ingredients=0.5 * own.standard_normal(INGREDIENTS),
        name_share=share / total[VOCABULARY.ingredient_of],
        codes=0.3 * regional.standard_normal(CODES) + 0.5 * own.standard_normal(CODES),
    )


def make_site(site: PlannedSite) -> SiteTable:
    """One hospital with `site.rows` stays."""
    rng = site.rng(0)
    habits = _draw_habits(site)
    again = rng.random(site.rows) < 0.10  # the same person as the stay before
    again[0] = False
    person = np.cumsum(~again)
    first = np.maximum.accumulate(np.where(again, 0, np.arange(site.rows)))
    condition = rng.choice(CONDITIONS, size=site.rows, p=habits.conditions)[first]
    grave = rng.standard_normal(site.rows)
    grave = np.where(again, 0.7 * grave[first] + 0.7 * grave, grave)
    drugs = _draw_orders(site, habits, condition, grave, rng)
    codes = _draw_codes(site, habits, condition, grave, rng)
    signs = _draw_signs(site, condition == NEURO, grave, rng)
    x = channels(drugs.astype(np.float64), codes.astype(np.float64), signs, VOCABULARY)
    logit = shared_logit(x) + hospital_deviation(x, site.risk)
    share = death_share(site.tier, site.rate)
    intercept = optimize.brentq(lambda b: float(special.expit(logit + b).mean()) - share, -40.0, 40.0)
    died = rng.random(site.rows) < special.expit(logit + intercept)
    features = pd.concat(
        [
            pd.DataFrame(drugs, columns=list(DRUG_COLUMNS)),
            pd.DataFrame(codes, columns=list(CODE_COLUMNS)),
            pd.DataFrame(signs, columns=list(SIGNS)),
        ],
        axis=1,
    )
    identity = pd.DataFrame(
        {
            "patientunitstayid": site.number * 100_000 + np.arange(site.rows) + 1,
            "uniquepid": [f"{site.number:03d}-{n:05d}" for n in person],
        }
    )
    outcome = pd.DataFrame({"died": died.astype(np.int8)})
    return SiteTable(
        site=site,
        frame=pd.concat([identity, features, outcome], axis=1),
        usable=np.ones(site.rows, dtype=np.bool_),
        candidates=features,
        positive=died,
        risk=logit,
    )


def _draw_orders(
    site: PlannedSite,
    habits: _Habits,
    condition: NDArray[np.intp],
    grave: FloatArray,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Orders by name: (stays, drugs). At least four orders, the rule under which stays enter the study."""
    busy = 11.0 * np.exp(0.2 * site.covariates[0] + 0.5 * rng.standard_normal(len(grave)))
    weights = (
        VOCABULARY.ingredient_weight[condition] + habits.ingredients + np.outer(grave, VOCABULARY.severity)
    )
    expected = special.softmax(weights, axis=1) * busy[:, None]  # (stays, ingredients)
    orders = rng.poisson(expected[:, VOCABULARY.ingredient_of] * habits.name_share)
    orders[orders > 0] += rng.poisson(0.4, int((orders > 0).sum()))
    favourite = int(np.argmax(orders.sum(axis=0)))
    orders[:, favourite] += np.maximum(4 - orders.sum(axis=1), 0)
    return np.minimum(orders, 200).astype(np.uint8)


def _draw_codes(
    site: PlannedSite,
    habits: _Habits,
    condition: NDArray[np.intp],
    grave: FloatArray,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Diagnoses by code: (stays, codes). A code is charted again and again; at least three in all."""
    zeal = 5.0 * np.exp(0.3 * site.covariates[1] + 0.4 * rng.standard_normal(len(condition)))
    weights = VOCABULARY.code_weight[condition] + habits.codes + np.outer(grave, VOCABULARY.code_severity)
    shares = special.softmax(weights, axis=1)  # (stays, codes)
    charted = rng.poisson(shares * zeal[:, None])
    charted[charted > 0] += rng.poisson(rng.gamma(1.0, 1.6, int((charted > 0).sum())))
    main = np.argmax(shares, axis=1)
    charted[np.arange(len(condition)), main] += np.maximum(3 - charted.sum(axis=1), 0)
    return np.minimum(charted, 200).astype(np.uint8)


def _draw_signs(
    site: PlannedSite, neuro: NDArray[np.bool_], grave: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Means of the seven signs over the first 48 hours: (stays, signs); points, per minute, mmHg, %."""
    noise = rng.standard_normal((8, len(grave)))
    charting = stats.expon.ppf(stats.norm.cdf(site.case_mix))  # a few hospitals are far worse than the rest
    coma = -1.6 + 1.1 * charting + 0.7 * grave + 1.0 * neuro + 0.8 * noise[0]
    heart_rate = 86 + 7 * grave + 2 * site.covariates[2] + 14 * noise[4]
    systolic = 122 - 6 * grave + 2 * site.covariates[2] + 17 * noise[5]
    return np.column_stack(
        [
            np.clip(np.round(4 - 3 * special.expit(coma - 1.3 + 0.5 * noise[1]), 1), 1, 4),
            np.clip(np.round(6 - 5 * special.expit(1.2 * coma - 1.8 + 0.3 * noise[2]), 1), 1, 6),
            np.clip(np.round(5 - 4 * special.expit(coma + 1.2 * noise[3]), 1), 1, 5),
            np.clip(np.round(heart_rate, 1), 30, 200),
            np.clip(np.round(systolic, 1), 55, 230),
            np.clip(np.round(20 + 1.5 * grave + 4 * noise[6], 1), 6, 50),
            np.clip(np.round(97 - 0.6 * grave - np.abs(1.8 * noise[7]), 1), 70, 100),
        ]
    )
