"""Primary-care cohort shaped like CPRD: landmark rows, ten-year cardiovascular risk, one file per practice.

Known structure: log hazard = practice intercept + shared risk function + the practice's own deviation. The
shared function is nonlinear (risk factors lose force with age, thresholds, sexes differ) and takes many
practices to learn; a practice's deviation is a combination of four plain directions, shared in part by its
region. A patient's rows come from one history: an event ends it, later landmarks are flagged.

It writes no files; excluded rows (earlier CVD or death, no follow-up) are made on purpose, for the loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from fedmap_lab.cohorts.follow_up import HORIZON, LANDMARKS, STEP, FollowUp, follow_patients
from fedmap_lab.cohorts.heterogeneity import HeterogeneityTargets, Spread
from fedmap_lab.cohorts.site_plan import (
    FloatArray,
    PlannedSite,
    PlanSettings,
    Region,
    SiteTable,
    TierSizes,
    own_risk,
    plan_sites,
    scaled_sites,
)

PLAN = PlanSettings(
    prefix="practice",
    stream=1,
    tiers=(
        TierSizes(tier=1, sites=185, mean=3276, sd=1192, least=2001, most=None),
        TierSizes(tier=2, sites=188, mean=1265, sd=433, least=500, most=2000),
        TierSizes(tier=3, sites=16, mean=308, sd=159, least=40, most=499),
    ),
    regions=(
        Region("North East", 0.03),
        Region("North West", 0.14),
        Region("Yorkshire and The Humber", 0.05),
        Region("East Midlands", 0.05),
        Region("West Midlands", 0.12),
        Region("East of England", 0.11),
        Region("London", 0.16),
        Region("South East", 0.20),
        Region("South West", 0.14),
    ),
    covariates=4,
    risk=4,
    region_share=0.4,
    rate_on_case_mix=0.5,
)
FEATURES = ("sex", "smoking_status", "bp_med", "diabetes_diag", "sbp", "tchol", "hdl", "landmark_age")
DEVIATION = (0.33, 0.32, 0.32, 0.24)
"""SD over practices of each direction's coefficient."""


plan = partial(plan_sites, PLAN)
"""The practices: `scale` changes their number, not their sizes."""


def targets(scale: float) -> HeterogeneityTargets:
    return HeterogeneityTargets(
        tier_sites=scaled_sites(PLAN.tiers, scale),
        tier_rows={tier.tier: Spread(tier.mean, tier.sd) for tier in PLAN.tiers},
        site_rows={},
        positive_share=Spread(0.14, 0.05),
        wasserstein=Spread(0.40, 0.31),
        regions=len(PLAN.regions),
    )


@dataclass(frozen=True)
class Measurements:
    """Risk factors as measured: years, 0/1, mmHg, mmol/l."""

    age: FloatArray
    male: FloatArray
    smoker: FloatArray
    treated: FloatArray
    diabetes: FloatArray
    sbp: FloatArray
    tchol: FloatArray
    hdl: FloatArray


class Covariates(Measurements):
    """The same in the units of the risk function: 0/1, the others near mean 0 and SD 1."""


def shared_log_hazard(x: Covariates) -> FloatArray:
    """What all practices have in common."""
    ratio = np.tanh(x.tchol - x.hdl)  # saturates: the highest ratios are the treated ones
    pressure = np.logaddexp(0.0, 3.0 * (x.sbp - 0.4)) / 3.0  # counts above some 140 mmHg only
    old = special.expit(4.0 * (x.age - 0.2))  # the risk factors of middle age lose their force after 60
    return np.asarray(
        0.90 * x.age
        + x.male * (0.85 - 0.90 * old)
        + x.smoker * (1.00 - 1.00 * old)
        + x.diabetes * (1.00 - 0.50 * old - 0.60 * x.male)
        + pressure * (0.85 - 0.95 * x.treated)
        + 0.20 * x.treated
        + ratio * (0.75 - 1.10 * old)
        + 0.30 * old * (np.square(x.sbp) - 1.0)  # in the old, low pressure is a bad sign too
        + 0.25 * (1 - x.male) * np.square(np.minimum(x.hdl, 2.0))  # U-shaped HDL in women
    )


def practice_deviation(x: Covariates, risk: tuple[float, ...]) -> FloatArray:
    """What is the practice's own: treatment of pressure, of lipids, deprivation, and care of the old."""
    directions = (
        x.sbp - 1.1 * (x.treated - 0.3),
        0.8 * x.tchol + 0.6 * x.hdl,
        1.6 * (x.smoker - 0.2) - 0.7 * (x.male - 0.5),
        0.8 * x.age - 1.2 * (x.diabetes - 0.1),
    )
    return own_risk(risk, DEVIATION, directions)


def make_site(site: PlannedSite) -> SiteTable:
    """One practice: exactly `site.rows` usable rows and, among them, the excluded ones."""
    rng = site.rng()
    patients = int(site.rows * 1.02) + 20  # nearly every patient has a usable first landmark
    measured = _draw_measurements(site, patients, rng)
    x = standardise(measured)
    log_hazard = shared_log_hazard(x) + practice_deviation(x, site.risk)
    history = follow_patients(measured.age, log_hazard, event_share(site.rate), rng)
    return _table(site, measured, log_hazard, history)


def standardise(measured: Measurements) -> Covariates:
    """The fixed units of the risk function: no site's data enter them."""
    return Covariates(
        age=(measured.age - 60) / 10,
        male=measured.male,
        smoker=measured.smoker,
        treated=measured.treated,
        diabetes=measured.diabetes,
        sbp=(measured.sbp - 135) / 16,
        tchol=measured.tchol - 5.3,
        hdl=(measured.hdl - 1.45) / 0.37,
    )


def _draw_measurements(site: PlannedSite, patients: int, rng: np.random.Generator) -> Measurements:
    """Risk factors at each landmark of each patient: arrays of (patients, landmarks)."""
    deprivation, prescribing, lipids, women = site.covariates
    shape = (patients, LANDMARKS)
    first = 57.5 + 3.9 * site.case_mix + 9.0 * rng.standard_normal((patients, 1))
    age = np.clip(np.floor(first / STEP) * STEP, 40, 85) + STEP * np.arange(LANDMARKS)
    years = (age - 60) / 10
    person = rng.standard_normal((4, patients, 1))
    male = np.broadcast_to(rng.random((patients, 1)) < 0.48 - 0.03 * women, shape).astype(np.float64)
    smokes = special.expit(-1.3 + 0.35 * deprivation - 0.25 * years[:, :1] + 0.2 * male[:, :1])
    smoker = np.broadcast_to(rng.random((patients, 1)) < smokes, shape).astype(np.float64)
    diabetes = person[0] < -1.45 + 0.18 * deprivation + 0.18 * years + 0.10 * male
    treated = 0.8 * person[1] - 0.2 * person[0] > 0.65 - 0.22 * prescribing - 0.30 * years
    sbp = 131 + 4.5 * years + 2 * male + 1.5 * prescribing + 3 * treated
    sbp = sbp + 12 * person[1] + 8 * rng.standard_normal(shape)
    tchol = 5.45 - 0.12 * years - 0.30 * diabetes - 0.15 * male + 0.12 * lipids
    tchol = tchol + 0.85 * person[2] + 0.50 * rng.standard_normal(shape)
    hdl = 1.55 - 0.25 * male - 0.12 * diabetes - 0.05 * smoker - 0.04 * deprivation
    hdl = hdl * np.exp(0.20 * person[3] + 0.10 * rng.standard_normal(shape))
    return Measurements(
        age=age,
        male=male,
        smoker=smoker,
        treated=treated.astype(np.float64),
        diabetes=diabetes.astype(np.float64),
        sbp=np.clip(np.round(sbp), 75, 240),
        tchol=np.clip(np.round(tchol, 1), 1.8, 12.0),
        hdl=np.clip(np.round(hdl, 2), 0.4, 4.0),
    )


def event_share(rate: float) -> float:
    """Share of rows with an event within ten years: lognormal over practices, 0.14 ± 0.05."""
    mean, sd = 0.14, 0.05
    spread = np.sqrt(np.log1p((sd / mean) ** 2))
    return float(mean * np.exp(spread * rate - spread**2 / 2))


def _table(site: PlannedSite, measured: Measurements, log_hazard: FloatArray, follow: FollowUp) -> SiteTable:
    """The practice's file: landmark rows in the order of the patients, up to the last usable row wanted."""
    usable = follow.usable
    last = np.flatnonzero(usable)[site.rows - 1]
    rows = np.flatnonzero(follow.listed)
    rows = rows[rows <= last]

    def column(values: FloatArray | NDArray[np.bool_]) -> FloatArray:
        return np.asarray(values.ravel()[rows], dtype=np.float64)

    pracid = 20_000 + site.number
    frame = pd.DataFrame(
        {
            "pracid": np.full(len(rows), pracid),
            "patid": pracid * 100_000 + rows // LANDMARKS + 1,
            "sex": np.where(column(measured.male) > 0, "M", "F"),
            "smoking_status": column(measured.smoker).astype(np.int8),
            "bp_med": column(measured.treated).astype(np.int8),
            "diabetes_diag": column(measured.diabetes).astype(np.int8),
            "sbp": column(measured.sbp),
            "tchol": column(measured.tchol),
            "hdl": column(measured.hdl),
            "landmark_age": column(measured.age).astype(np.int16),
            "end_time": column(follow.end_time),
            "event": column(follow.event).astype(np.int8),
            "cvd_before_landmark": column(follow.cvd_before).astype(np.int8),
            "death_before_landmark": column(follow.death_before).astype(np.int8),
        }
    )
    kept = usable.ravel()[rows]
    candidates = frame.loc[kept, list(FEATURES)].assign(sex=column(measured.male)[kept])
    return SiteTable(
        site=site,
        frame=frame,
        usable=kept,
        candidates=candidates.astype(np.float32),
        positive=np.asarray((frame["event"] == 1) & (frame["end_time"] <= HORIZON))[kept],
        risk=column(log_hazard)[kept],
    )
