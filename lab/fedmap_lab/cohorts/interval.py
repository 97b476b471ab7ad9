"""Blood-donor cohort shaped like INTERVAL: Sysmex full blood counts, iron deficiency, five donor populations.

Known structure: logit of low ferritin = site intercept + shared risk function + the site's own deviation in
three plain directions. Cell indices are derived from red cells, volume and concentration, so that they agree
with each other; a latent lack of iron lowers haemoglobin, volume and concentration and widens the cells.

The five sites are given by the study, so `scale` changes their rows, not their number. It writes no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, special

from fedmap_lab.cohorts.heterogeneity import HeterogeneityTargets, Spread
from fedmap_lab.cohorts.site_plan import FloatArray, PlannedSite, SiteTable, check_scale, own_risk

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


COUNTS = (
    *("WBC_10_9_L", "RBC_10_12_L", "HGB_g_L", "HCT_PCT", "MCV_fL", "MCH_pg", "MCHC_g_dL", "PLT_10_9_L"),
    *("RDW_SD_fL", "NEUT_10_9_L", "LYMPH_10_9_L", "MONO_10_9_L", "EO_10_9_L", "BASO_10_9_L"),
    *("NRBC_10_9_L", "IG_10_9_L"),
)
FEATURES = (*COUNTS, "Age", "Sex")
STREAM = 2
FEWEST_ROWS = 40
AGES = np.arange(18, 81)
LONGEST_DELAY_HOURS = 36.0
HEIGHT_M = (0.5, 2.5)
WEIGHT_KG = (30.0, 190.0)


@dataclass(frozen=True)
class DonorSite:
    """A donor population. `risk` places its risk function; the seed moves it a little."""

    site: str
    tier: int
    rows: int
    low_ferritin: float
    ages: FloatArray
    """Probability of each age of AGES."""
    women: float
    iron_loss: float
    """Shift of the latent lack of iron, in SD."""
    thalassaemia: float
    """Share of carriers: small cells that no lack of iron explains."""
    neutrophils: float
    risk: tuple[float, float, float]


def _ages(mean: float, sd: float, selection: FloatArray | float = 1.0) -> FloatArray:
    weights = np.exp(-0.5 * ((AGES - mean) / sd) ** 2) * selection
    return np.asarray(weights / weights.sum())


SITES = (
    DonorSite(
        "older_donors", 1, 15772, 0.11, _ages(46, 15, special.expit(0.2 * (AGES - 60))),
        women=0.42, iron_loss=0.08, thalassaemia=0.005, neutrophils=1.0, risk=(1.2, -1.3, 0.1),
    ),
    DonorSite(
        "younger_donors", 1, 12491, 0.22, _ages(44, 15, 1 - special.expit(0.2 * (AGES - 40))),
        women=0.58, iron_loss=0.00, thalassaemia=0.005, neutrophils=1.0, risk=(-0.8, 0.2, 0.8),
    ),
    DonorSite(
        "non_european_ancestry", 1, 2024, 0.28, _ages(38, 11),
        women=0.48, iron_loss=0.48, thalassaemia=0.12, neutrophils=0.85, risk=(-1.2, 1.3, 0.2),
    ),
    DonorSite(
        "new_donors", 2, 1361, 0.08, _ages(34, 12),
        women=0.56, iron_loss=-0.45, thalassaemia=0.01, neutrophils=1.03, risk=(0.9, 0.9, -1.2),
    ),
    DonorSite(
        "small_centre", 3, 301, 0.16, _ages(46, 14),
        women=0.50, iron_loss=-0.05, thalassaemia=0.02, neutrophils=1.0, risk=(0.3, 0.1, -0.2),
    ),
)  # fmt: skip


def plan(scale: float, seed: int) -> tuple[PlannedSite, ...]:
    """The five sites with their rows scaled."""
    check_scale(scale)
    planned = []
    for number, donors in enumerate(SITES):
        moved = np.random.default_rng([seed, STREAM, number]).normal(donors.risk, 0.15)
        planned.append(
            PlannedSite(
                site=donors.site,
                number=number,
                tier=donors.tier,
                region="England",
                rows=_scaled_rows(donors, scale),
                rate=0.0,
                case_mix=0.0,
                covariates=(),
                risk=tuple(moved.tolist()),
                entropy=(seed, STREAM, number, 1),
            )
        )
    return tuple(planned)


def targets(scale: float) -> HeterogeneityTargets:
    return HeterogeneityTargets(
        tier_sites={1: 3, 2: 1, 3: 1},
        tier_rows={},
        site_rows={donors.site: _scaled_rows(donors, scale) for donors in SITES},
        positive_share=Spread(0.17, 0.08),
        wasserstein=Spread(0.38, 0.25),
        regions=1,
    )


def _scaled_rows(donors: DonorSite, scale: float) -> int:
    return max(FEWEST_ROWS, round(donors.rows * scale))


def make_site(site: PlannedSite) -> SiteTable:
    """One site: `site.rows` usable rows and the excluded ones; a smaller scale is a shorter file."""
    donors = SITES[site.number]
    blocks, logits = [], []
    intercept: float | None = None
    for block in range(math.ceil(site.rows / donors.rows)):
        rng = site.rng(block)
        frame = _draw_donors(donors, int(donors.rows * 1.04) + 20, rng)
        x = standardise(frame)
        logit = shared_logit(x) + site_deviation(x, site.risk)
        if intercept is None:  # the first block fixes it, whatever the scale
            intercept = _intercept(logit, donors.low_ferritin)
        frame["ferritin_low"] = (rng.random(len(frame)) < special.expit(logit + intercept)).astype(np.int8)
        blocks.append(_add_recruitment(frame, rng))
        logits.append(logit)
    return _table(site, pd.concat(blocks, ignore_index=True), np.concatenate(logits))


def _intercept(logit: FloatArray, share: float) -> float:
    return float(optimize.brentq(lambda b: float(special.expit(logit + b).mean()) - share, -30.0, 30.0))


def _draw_donors(donors: DonorSite, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Age, sex and a full blood count in which the indices agree."""
    noise = rng.standard_normal((11, rows))
    age = rng.choice(AGES, size=rows, p=donors.ages).astype(np.float64)
    female = rng.random(rows) < donors.women
    carrier = rng.random(rows) < donors.thalassaemia
    lack = donors.iron_loss + 0.35 * female * (age < 50) + noise[0]
    red = np.where(female, 4.47, 4.95) + 0.30 * noise[1] - 0.04 * lack + 0.70 * carrier
    volume = 90.2 - 1.9 * lack + 3.1 * noise[2] + 0.05 * (age - 45) - 14 * carrier
    concentration = 33.5 - 0.30 * lack + 0.62 * noise[3]
    width = 43 + 1.5 * lack + 2.3 * noise[4] + 0.04 * (age - 45) - 1.5 * carrier
    red, volume = np.clip(red, 2.8, 7.5), np.clip(volume, 58, 115)
    concentration = np.clip(concentration, 28.5, 37)
    haematocrit = red * volume / 10
    haemoglobin = concentration * haematocrit / 10
    white = {
        "NEUT_10_9_L": np.clip(3.4 * donors.neutrophils * np.exp(0.30 * noise[5]), 0.8, 14),
        "LYMPH_10_9_L": np.clip(1.85 * np.exp(0.27 * noise[6]), 0.5, 6),
        "MONO_10_9_L": np.clip(0.50 * np.exp(0.27 * noise[7]), 0.1, 1.8),
        "EO_10_9_L": np.clip(0.16 * np.exp(0.60 * noise[8]), 0.0, 2.0),
        "BASO_10_9_L": np.clip(0.04 * np.exp(0.40 * noise[9]), 0.0, 0.3),
    }
    platelets = 232 + 11 * lack + 20 * female + 45 * noise[10]
    columns = {
        "WBC_10_9_L": np.round(sum(white.values()), 2),
        "RBC_10_12_L": np.round(red, 2),
        "HGB_g_L": np.round(haemoglobin),
        "HCT_PCT": np.round(haematocrit, 1),
        "MCV_fL": np.round(volume, 1),
        "MCH_pg": np.round(haemoglobin / red, 1),
        "MCHC_g_dL": np.round(concentration, 1),
        "PLT_10_9_L": np.clip(np.round(platelets), 60, 650),
        "RDW_SD_fL": np.clip(np.round(width, 1), 31, 70),
        **{name: np.round(values, 2) for name, values in white.items()},
        "NRBC_10_9_L": np.where(rng.random(rows) < 0.03, 0.01, 0.0),
        "IG_10_9_L": np.round(np.clip(rng.gamma(3.0, 0.006, rows), 0.0, 0.3), 2),
        "Age": age,
        "Sex": np.where(female, "F", "M"),
    }
    return pd.DataFrame({name: columns[name] for name in FEATURES}).astype({"Age": np.int16})


def _add_recruitment(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Delay, height and weight; in about one row of eighty one of them is beyond what the study admits."""
    rows = len(frame)
    female = np.asarray(frame["Sex"] == "F")
    height = np.where(female, 1.64, 1.77) + 0.066 * rng.standard_normal(rows)
    weight = 26.5 * height**2 * np.exp(0.15 * rng.standard_normal(rows))
    delay = 2 + 22 * rng.beta(2.0, 2.0, rows)
    fault = rng.random(rows)
    return frame.assign(
        delay_hours=np.round(np.where(fault < 0.008, delay + 36, delay), 1),
        height_m=np.round(
            np.where((fault > 0.008) & (fault < 0.010), height * 10, np.clip(height, 1.35, 2.1)), 2
        ),
        weight_kg=np.round(
            np.where((fault > 0.010) & (fault < 0.012), weight / 10, np.clip(weight, 40, 170)), 1
        ),
    )


def _table(site: PlannedSite, frame: pd.DataFrame, logit: FloatArray) -> SiteTable:
    usable: NDArray[np.bool_] = np.asarray(
        (frame["delay_hours"] <= LONGEST_DELAY_HOURS)
        & frame["height_m"].between(*HEIGHT_M)
        & frame["weight_kg"].between(*WEIGHT_KG)
    )
    rows = int(np.flatnonzero(usable)[site.rows - 1]) + 1
    frame, usable = frame.iloc[:rows], usable[:rows]
    kept = frame[usable]
    candidates = kept[list(FEATURES)].assign(Sex=np.asarray(kept["Sex"] == "M"))
    return SiteTable(
        site=site,
        frame=frame[[*FEATURES, "ferritin_low", "delay_hours", "height_m", "weight_kg"]],
        usable=usable,
        candidates=candidates.astype(np.float32),
        positive=np.asarray(kept["ferritin_low"] == 1),
        risk=logit[:rows][usable],
    )
