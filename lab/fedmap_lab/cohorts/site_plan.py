"""Which sites a synthetic cohort has: names, regions, sizes, tiers and site-level random effects.

The whole cohort is planned first, always at full size; `scale` then keeps the first sites of each tier. So a
site of a small cohort is the same site, with the same file, in the large one. Effects are normal scores of a
regional part plus a part of the site's own: every seed has the same *amount* of heterogeneity, placed
differently.

It draws no patients and writes no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fedmap.errors import FedmapError

FloatArray = NDArray[np.float64]

LARGEST_SCALE = 10.0
FEWEST_SITES = {1: 3, 2: 1, 3: 1}
"""What is left of each tier in the smallest cohort: enough to federate, to fine-tune and to predict."""


@dataclass(frozen=True)
class TierSizes:
    """Sites of one tier and the rows they have. `most` None: no upper limit."""

    tier: int
    sites: int
    mean: float
    sd: float
    least: int
    most: int | None


@dataclass(frozen=True)
class Region:
    name: str
    share: float
    """Of the sites."""


@dataclass(frozen=True)
class PlannedSite:
    """One site before any patient is drawn. Effects are standard normal over the sites of the cohort."""

    site: str
    number: int
    tier: int
    region: str
    rows: int
    rate: float
    case_mix: float
    covariates: tuple[float, ...]
    risk: tuple[float, ...]
    """Coordinates of the site's own risk function around the shared one."""
    entropy: tuple[int, ...]
    """Seeds the site's patients, and nothing else."""

    def rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([*self.entropy, *stream]))


@dataclass(frozen=True)
class PlanSettings:
    """What the planner needs to know of a cohort."""

    prefix: str
    stream: int
    tiers: tuple[TierSizes, ...]
    regions: tuple[Region, ...]
    covariates: int
    risk: int
    region_share: float
    """Share of the variance of each effect that a site has in common with its region."""
    rate_on_case_mix: float
    """Correlation of a site's outcome rate with its case mix."""


def check_scale(scale: float) -> None:
    if not (math.isfinite(scale) and 0 < scale <= LARGEST_SCALE):
        raise FedmapError(
            f"the scale of a cohort must be above 0 and at most {LARGEST_SCALE:g}",
            hint="1 is the size of the published study; 0.1 is enough to try things out.",
        )


def scaled_sites(tiers: Sequence[TierSizes], scale: float) -> dict[int, int]:
    """How many sites of each tier a cohort of this scale has."""
    return {tier.tier: max(FEWEST_SITES[tier.tier], round(tier.sites * scale)) for tier in tiers}


def plan_sites(settings: PlanSettings, scale: float, seed: int) -> tuple[PlannedSite, ...]:
    """The sites of a cohort, tier 1 first. A scale above 1 adds further plans for the same regions."""
    check_scale(scale)
    wanted = scaled_sites(settings.tiers, scale)
    batches = max(math.ceil(wanted[tier.tier] / tier.sites) for tier in settings.tiers)
    planned = [site for batch in range(batches) for site in _plan_batch(settings, batch, seed)]
    kept: list[PlannedSite] = []
    for tier in settings.tiers:
        kept += [site for site in planned if site.tier == tier.tier][: wanted[tier.tier]]
    return tuple(kept)


def _plan_batch(settings: PlanSettings, batch: int, seed: int) -> list[PlannedSite]:
    rng = np.random.default_rng([seed, settings.stream, batch])
    sizes = [(tier.tier, rows) for tier in settings.tiers for rows in _sizes(tier, rng)]
    regions = _assign_regions(settings.regions, len(sizes), rng)
    effects = _Effects(settings, regions, seed, rng)
    case_mix = effects.draw()
    linked = settings.rate_on_case_mix
    rate = normal_scores(linked * case_mix + math.sqrt(1 - linked**2) * effects.draw())
    covariates = np.column_stack([effects.draw() for _ in range(settings.covariates)])
    risk = np.column_stack([effects.draw() for _ in range(settings.risk)])
    first = batch * len(sizes)
    return [
        PlannedSite(
            site=f"{settings.prefix}_{first + i + 1:03d}",
            number=first + i + 1,
            tier=tier,
            region=settings.regions[regions[i]].name,
            rows=rows,
            rate=float(rate[i]),
            case_mix=float(case_mix[i]),
            covariates=tuple(covariates[i].tolist()),
            risk=tuple(risk[i].tolist()),
            entropy=(seed, settings.stream, batch, i),
        )
        for i, (tier, rows) in enumerate(sizes)
    ]


class _Effects:
    """Draws one effect after another; the regional part is the same in every batch."""

    def __init__(
        self, settings: PlanSettings, regions: NDArray[np.intp], seed: int, own: np.random.Generator
    ) -> None:
        self._count = len(settings.regions)
        self._regions = regions
        self._share = settings.region_share
        self._regional = np.random.default_rng([seed, settings.stream])
        self._own = own

    def draw(self) -> FloatArray:
        regional = self._regional.permutation(normal_scores(np.arange(self._count, dtype=np.float64)))
        own = self._own.standard_normal(len(self._regions))
        mixed = math.sqrt(self._share) * regional[self._regions] + math.sqrt(1 - self._share) * own
        return normal_scores(mixed)


def own_risk(
    coordinates: Sequence[float], sizes: Sequence[float], directions: Sequence[FloatArray]
) -> FloatArray:
    """A site's own part of the risk function: so much of each direction."""
    total = np.zeros_like(directions[0])
    for coordinate, size, direction in zip(coordinates, sizes, directions, strict=True):
        total = total + coordinate * size * direction
    return total


def normal_scores(values: FloatArray) -> FloatArray:
    """The values' ranks as standard normal quantiles."""
    quantiles = (stats.rankdata(values) - 0.5) / len(values)
    return np.asarray(stats.norm.ppf(quantiles), dtype=np.float64)


def _sizes(tier: TierSizes, rng: np.random.Generator) -> list[int]:
    """Even quantiles of a distribution with the tier's mean and SD inside its limits, in random order."""
    quantiles = (np.arange(tier.sites) + 0.5) / tier.sites
    if tier.most is None:
        excess = tier.mean - tier.least
        shape = (excess / tier.sd) ** 2
        rows = tier.least + stats.gamma.ppf(quantiles, shape, scale=excess / shape)
    else:
        width = tier.most - tier.least
        mean, variance = (tier.mean - tier.least) / width, (tier.sd / width) ** 2
        total = mean * (1 - mean) / variance - 1
        rows = tier.least + width * stats.beta.ppf(quantiles, mean * total, (1 - mean) * total)
    return [round(float(r)) for r in rng.permutation(rows)]


def _assign_regions(regions: Sequence[Region], sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Region of each site: shares kept as exactly as whole sites allow, order random."""
    limits = np.cumsum([region.share for region in regions])
    places = (np.arange(sites) + 0.5) / sites * limits[-1]
    return rng.permutation(np.searchsorted(limits, places))


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
