"""What only the run itself can measure, because models and test rows are gone afterwards.

Predicted against observed risk by tier, pooled over its sites in bins without small cells; and the plan's
metric in each category of each category column, at every site where the category has no small cell. The
models that are judged are those that count in the tables: personal ones at T1 and T2, the global one at T3.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.metrics import Metric
from fedmap.scoring.calibration_bins import pool_bins
from fedmap.scoring.decision_rules import DecisionRule
from fedmap.scoring.evaluation import Scoring
from fedmap.scoring.evaluation_terms import calibration_terms, subgroup_rows
from fedmap_lab.federation.sites import Site
from fedmap_lab.simulation.simulate import Study


class Record(BaseModel):
    """A part of a finished job, as it is kept on disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CalibrationRecord(Record):
    """One bin of one tier's curve."""

    tier: int
    model: Literal["personal", "global"]
    rows: int
    predicted: float  # mean
    observed: float  # share; for survival Kaplan and Meier's risk at the plan's horizon
    low: float  # 95 % interval of the observed
    high: float


class SubgroupRecord(Record):
    """The plan's metric in one category at one site."""

    tier: int
    site: str
    column: str
    category: str
    value: float | None  # None: withheld or not measurable


def calibration_records(study: Study) -> tuple[CalibrationRecord, ...]:
    """The curves of the three tiers; none for a task without a risk."""
    floor = study.federation.plan.limits.min_cell
    found = []
    for tier in (1, 2, 3):
        by_site = {
            site.name: calibration_terms(scoring, floor)
            for site in study.federation.tier(tier)
            if (scoring := _scoring(study, site)) is not None
        }
        found += [
            CalibrationRecord(tier=tier, model="global" if tier == 3 else "personal", **one.model_dump())
            for one in pool_bins(by_site)
        ]
    return tuple(found)


def subgroup_records(study: Study) -> tuple[SubgroupRecord, ...]:
    """Every category at every site that has a model."""
    plan = study.federation.plan
    found = []
    for site in study.federation.sites:
        scoring = _scoring(study, site)
        if scoring is None or not len(site.data.test):
            continue
        for group in subgroup_rows(scoring, site.data.layout.names, plan.limits.min_cell):
            value = _value(scoring.on(group.rows)) if group.told else None
            at = {"tier": site.tier, "site": site.name, "column": group.column, "category": group.category}
            found.append(SubgroupRecord(value=value, **at))
    return tuple(found)


def _scoring(study: Study, site: Site) -> Scoring | None:
    """The model that counts at a site; None where there is none."""
    federation, trained = study.federation, study.trained
    own: SiteParameters | None
    if site.tier == 3:
        own = None if trained.prior is None else SiteParameters(trained.prior.mu, trained.prior.buffers)
        model, rule = federation.model, study.rule
    else:
        own = trained.personal.get(site.name) or study.fine_tuned.get(site.name)
        model, rule = trained.model or federation.model, study.rules.get(site.name, DecisionRule())
    if own is None:
        return None
    follow_up = site.data.train if len(site.data.train) else site.data.test
    return Scoring(federation.plan, model, own, rule, site.data.test, follow_up)


def _value(scoring: Scoring) -> float | None:
    (result,) = scoring.measure([scoring.plan.task.metric])
    return result.value if isinstance(result, Metric) else None
