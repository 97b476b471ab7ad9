"""How often the shift check is wrong: false alarms at sites like the federation's, and shifts it misses.

Federations are T1 sites of the synthetic cohorts; clinics are T3 sites of the same plan, which nothing was
trained on. A clinic is judged as it is (an alarm is false), and with one standard deviation added to or taken
off one input of all its rows (no alarm is a miss). An indicator has no such shift: a share cannot move by it.

Beside each input stands what Student's t test of that input alone would find, with as many sites and rows and
the whole 5 % spent on it. A check of many inputs cannot spend it so, but gains by their joint structure. The
figure needs the true spread between sites, so it is given only where a draw has enough sites to know it.

The tolerances of `fedmap.shift` were set on the draws 0 to 5 of practices and 0 to 29 of donors. The study
measures on draws from 100 on, which had no part in that.

Intervals are Clopper and Pearson's. Clinics that share a federation are not quite independent of each other;
small federations are therefore drawn anew for every few clinics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.pooling.statistics import Scaler, make_scaler, pool_statistics
from fedmap.data.loading import load_frame
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.scoring.disclosure import released_statistics
from fedmap.shift.check import check_shift
from fedmap.shift.pooling import pool_reference
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import reference_terms
from fedmap.study.plan.reading import load_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.cohorts.heterogeneity import univariate_auroc
from fedmap_lab.cohorts.making import COHORTS
from fedmap_lab.cohorts.site_plan import PlannedSite

CohortName = Literal["cprd", "interval"]
ROWS = 300
FALSE_ALARMS, FOUND = 0.05, 0.95
"""The targets: at most, and at least."""

_PLANS = Path(__file__).parents[1] / "plans"
_SCALE = {"cprd": 1.0, "interval": 0.2}  # all practices; a fifth of the donors
_SITES_FOR_SPREAD = 50
_FRESH = 100  # seed of the first draw
_CLINIC_SCALE = {"cprd": 10.0, "interval": 1.0}  # ten times the practices, for more T3 sites of the same plan


@dataclass(frozen=True)
class Tally:
    """How many of how many."""

    hits: int = 0
    of: int = 0

    def plus(self, hit: bool) -> Tally:
        return Tally(self.hits + hit, self.of + 1)

    @property
    def share(self) -> float:
        return self.hits / self.of if self.of else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, exact (Clopper and Pearson)."""
        low = stats.beta.ppf(0.025, self.hits, self.of - self.hits + 1) if self.hits else 0.0
        high = stats.beta.ppf(0.975, self.hits + 1, self.of - self.hits) if self.hits < self.of else 1.0
        return float(low), float(high)


@dataclass(frozen=True)
class Sites:
    """Sites of one cohort, not scaled."""

    plan: StudyPlan
    names: tuple[str, ...]
    scaled: tuple[bool, ...]
    training: tuple[Tensor, ...]  # of T1 sites
    clinics: tuple[Tensor, ...]  # T3 sites with the rows that their plan gives them
    clinics_of_300: tuple[Tensor, ...]
    association: tuple[float, ...]
    """Of each input with the outcome over all T1 rows: the univariate AUROC, turned to 0.5 or above."""


@dataclass(frozen=True)
class Calibration:
    """What was counted."""

    cohort: str
    sites: int
    federations: int
    as_planned: Tally  # false alarms at clinics of their own size
    of_300: Tally  # false alarms at clinics of 300 rows
    found: dict[str, Tally]  # by input, strongest association first
    association: dict[str, float]
    alone: dict[str, float]
    """Power of a test of one input by itself; empty where the spread between sites is not known well."""


def draw_sites(cohort: CohortName, seed: int, clinics: int, most_sites: int | None = None) -> Sites:
    """T1 sites of a cohort and T3 sites like them."""
    plan = load_plan(_PLANS / f"{cohort}.toml")
    generator = COHORTS[cohort]
    planned = [site for site in generator.plan(_SCALE[cohort], seed) if site.tier == 1]
    like_them = [site for site in generator.plan(_CLINIC_SCALE[cohort], seed) if site.tier == 3][:clinics]
    loaded = [_load(plan, cohort, site, 1) for site in planned[:most_sites]]
    parts = [[data.train, data.validation] for data in loaded]
    training = [torch.cat([part.features for part in both]) for both in parts]
    positive = np.concatenate([_positive(part) for both in parts for part in both])
    everything = torch.cat(training).numpy()
    areas = [univariate_auroc(everything[:, j], positive) for j in range(everything.shape[1])]
    return Sites(
        plan=plan,
        names=loaded[0].layout.names,
        scaled=loaded[0].layout.scaled,
        training=tuple(training),
        clinics=tuple(_load(plan, cohort, site, 3).test.features for site in like_them),
        clinics_of_300=tuple(
            _load(plan, cohort, replace(site, rows=ROWS), 3).test.features for site in like_them
        ),
        association=tuple(max(area, 1 - area) for area in areas),
    )


def _load(plan: StudyPlan, cohort: CohortName, site: PlannedSite, tier: int) -> SiteDataset:
    return load_frame(plan, site.site, COHORTS[cohort].make_site(site).frame, tier)


def _positive(part: Examples) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray((part.target if part.event is None else part.event).numpy() > 0)


def make_reference(sites: Sites, chosen: Sequence[int]) -> tuple[Reference, Scaler]:
    """The federation of some of the T1 sites, as its aggregator would pool it."""
    floor = sites.plan.limits.min_cell
    rows = {f"{site:04d}": sites.training[site] for site in chosen}
    statistics = {
        name: released_statistics(own, sites.scaled, floor).statistics for name, own in rows.items()
    }
    scaler = make_scaler(pool_statistics(statistics), sites.scaled)
    terms = {name: reference_terms(scaler.apply(own), sites.scaled, floor) for name, own in rows.items()}
    return pool_reference(terms, sites.names), scaler


def calibrate(
    cohort: CohortName,
    drawn: Sequence[Sites],
    sites: int,
    federations: int,
    clinics: int,
    inputs: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Counts alarms: each federation is `sites` T1 sites of one draw and judges `clinics` of its clinics.

    `inputs`: shift only that many, those with the strongest association.
    """
    random = np.random.default_rng(seed)
    as_planned, of_300 = Tally(), Tally()
    strongest = _by_association(drawn)[:inputs]
    found = {name: Tally() for name, _ in strongest}
    for number in range(federations):
        draw = drawn[number % len(drawn)]
        reference, scaler = make_reference(draw, random.permutation(len(draw.training))[:sites].tolist())
        for clinic in random.permutation(len(draw.clinics))[:clinics].tolist():
            as_planned = as_planned.plus(_alarms(reference, scaler.apply(draw.clinics[clinic])))
            rows = scaler.apply(draw.clinics_of_300[clinic])
            of_300 = of_300.plus(_alarms(reference, rows))
            for name, shifted in _shifted(draw, rows, reference, list(found)):
                found[name] = found[name].plus(_alarms(reference, shifted))
    alone = _alone(drawn[0], sites, list(found))
    return Calibration(cohort, sites, federations, as_planned, of_300, found, dict(strongest), alone)


def _alone(draw: Sites, sites: int, names: Sequence[str]) -> dict[str, float]:
    """Of the natural spread of all T1 sites of a draw, met with as few as `sites` of them."""
    if len(draw.training) < _SITES_FOR_SPREAD:
        return {}
    whole, _ = make_reference(draw, range(len(draw.training)))
    spread = {one.name: (one.between / one.deviation, one.within / one.deviation) for one in whole.inputs}
    return {name: power_alone(sites, *spread[name]) for name in names}


def power_alone(sites: int, between: float, within: float) -> float:
    """Of the two-sided 5 % test for a shift of 1 in a site's mean, from the means of `sites` others."""
    limit = stats.t.ppf(0.975, sites - 1)
    seen = 1 / np.sqrt((1 + 1 / sites) * between**2 + within**2 / ROWS)
    return float(stats.nct.sf(limit, sites - 1, seen) + stats.nct.cdf(-limit, sites - 1, seen))


def _by_association(drawn: Sequence[Sites]) -> list[tuple[str, float]]:
    first = drawn[0]
    mean = np.mean([draw.association for draw in drawn], axis=0)
    numbers = [j for j, scaled in enumerate(first.scaled) if scaled]
    return [(first.names[j], float(mean[j])) for j in sorted(numbers, key=lambda j: -mean[j])]


def _shifted(
    draw: Sites, rows: Tensor, reference: Reference, names: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        j = draw.names.index(name)
        for sign in (-1.0, 1.0):
            moved = rows.clone()
            moved[:, j] += sign * reference.inputs[j].deviation
            yield name, moved


def _alarms(reference: Reference, rows: Tensor) -> bool:
    return check_shift(reference, rows).verdict != "predict"


def show(console: Console, results: Sequence[Calibration]) -> None:
    """A table per cohort and size of federation."""
    for result in results:
        title = f"{result.cohort}: {result.sites} sites in the federation, {result.federations} federations"
        table = Table(title=title, title_justify="left")
        for column in ("what", "alarms", "of", "share", "95 % interval", "target", "held", "alone"):
            table.add_column(column)
        for what, tally in (
            ("false alarms, T3 sites as planned", result.as_planned),
            (f"false alarms, {ROWS} rows", result.of_300),
        ):
            table.add_row(what, *_figures(tally), "≤ 5 %", "yes" if tally.share <= FALSE_ALARMS else "NO", "")
        for name, tally in result.found.items():
            what = f"found: ± 1 SD in {name} (AUROC {result.association[name]:.2f})"
            held = "yes" if tally.share >= FOUND else "NO"
            alone = f"{100 * result.alone[name]:.0f} %" if name in result.alone else ""
            table.add_row(what, *_figures(tally), "≥ 95 %", held, alone)
        console.print(table)


def _figures(tally: Tally) -> tuple[str, ...]:
    low, high = tally.interval
    return (
        str(tally.hits),
        str(tally.of),
        f"{100 * tally.share:.1f} %",
        f"{100 * low:.1f} to {100 * high:.1f} %",
    )


def main(
    draws: Annotated[int, typer.Option(min=1, help="Cohorts of practices to draw.")] = 6,
    donors: Annotated[int, typer.Option(min=1, help="Cohorts of blood donors to draw.")] = 200,
) -> None:
    """Measure the shift check's false alarms and misses on the synthetic cohorts; takes minutes."""
    torch.set_num_threads(1)
    console = Console()
    practices = [draw_sites("cprd", _FRESH + draw, clinics=160) for draw in range(draws)]
    every = len(practices[0].training)
    results = [calibrate("cprd", practices, every, federations=draws, clinics=160)]
    results += [
        calibrate("cprd", practices, sites, federations, clinics)
        for sites, federations, clinics in (
            (50, 24, 25),
            (20, 60, 10),
            (10, 120, 5),
            (5, 200, 3),
            (3, 200, 3),
        )
    ]
    centres = [draw_sites("interval", _FRESH + draw, clinics=1) for draw in range(donors)]
    results.append(calibrate("interval", centres, sites=3, federations=donors, clinics=1))
    show(console, results)


if __name__ == "__main__":
    typer.run(main)
