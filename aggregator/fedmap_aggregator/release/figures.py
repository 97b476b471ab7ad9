"""What a release says besides its parameters: the study's record as figures, pooled over sites.

Computes only; what becomes of the figures is `signing`'s. Figures of the final global model exist for the
last round alone: an earlier one is released without them, and says so. Answers of agents that did not send a
figure yet are read as such, and the figure is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedmap.bundles.manifest import DataSummary, GateCount, GroupEstimate, TierPerformance
from fedmap.contract.v1.values import EvaluationAnswer, Score
from fedmap.metrics import metric_names
from fedmap.scoring.calibration_bins import BinTerms, pool_bins
from fedmap.scoring.figures import CalibrationBin, Estimate
from fedmap.scoring.meta_analysis import pool_estimates
from fedmap.study.answer_names import FINE_TUNED, GLOBAL, PERSONAL
from fedmap.study.plan.inputs import subgroups_of
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.record import StudyRecord
from fedmap_aggregator.release.data import data_summary

_FEWEST = 2  # sites of a group: the figure of one alone would be that site's own
_HOW: Mapping[str, str] = {
    PERSONAL: "each site's own model, on test rows of that site",
    FINE_TUNED: "the global model fine-tuned at each site, on test rows of that site; these sites also "
    "trained the prior, so a new site may gain less or more",
    GLOBAL: "the global model as it is, on test rows of sites that trained it; a new site may do worse",
}
_Model = Literal["personal", "fine_tuned", "global"]
_TIERS: tuple[tuple[Literal[1, 2, 3], _Model], ...] = ((1, "personal"), (2, "fine_tuned"), (3, "global"))
_NOT_EVALUATED = "not evaluated: sites score the last round of a study only"


@dataclass(frozen=True)
class ReleaseFigures:
    """Parts of a bundle's manifest. What could not be measured is empty, and a note beside it says why."""

    data: DataSummary | None
    performance: tuple[TierPerformance, ...]
    calibration: tuple[CalibrationBin, ...]
    groups: tuple[GroupEstimate, ...]
    sites: int  # whose updates stand behind the prior
    accepted_updates: int
    refused: tuple[GateCount, ...]


def release_figures(record: StudyRecord, number: int) -> ReleaseFigures:
    """The figures of the prior that round `number` made."""
    plan, regions = record.terms.plan, record.regions
    rounds = [one for one in record.rounds if one.summary.round <= number]
    sites = {site for one in rounds for site in one.weights}
    final = number == record.terms.rounds
    evaluations = {site: told for site, told in record.evaluations.items() if final and site in sites}
    tasks = {"statistics", "initialise", *(f"round-{n}" for n in range(1, number + 1))}
    tasks |= {"rule", "evaluate"} if final else set()
    refused = Counter(one.code for one in record.refusals if one.task in tasks)
    statistics = {site: told for site, told in record.statistics.items() if site in sites}
    return ReleaseFigures(
        data=data_summary(plan, statistics, evaluations, regions),
        performance=_performance(plan, evaluations),
        calibration=pool_bins({site: _bins(found) for site, found in evaluations.items()}),
        groups=(*_regions(plan, regions, evaluations), *_subgroups(plan, evaluations)),
        sites=len(sites),
        accepted_updates=sum(len(one.weights) - len(one.absent) for one in rounds),
        refused=tuple(GateCount(code=code, count=refused[code]) for code in sorted(refused)),
    )


def _performance(plan: StudyPlan, evaluations: Mapping[str, EvaluationAnswer]) -> tuple[TierPerformance, ...]:
    scores = [score for site in sorted(evaluations) for score in evaluations[site].scores]
    found = []
    for tier, model in _TIERS:
        by_metric = (
            _pooled([s for s in scores if (s.model, s.metric) == (model, name)], name == plan.task.metric)
            for name in metric_names(plan.task.kind)
        )
        estimates = tuple(estimate for estimate in by_metric if estimate is not None)
        note = _HOW[model] if estimates else "not measured: no site let a score go"
        note = note if evaluations else _NOT_EVALUATED
        found.append(TierPerformance(tier=tier, model=model, estimates=estimates, note=note))
    return tuple(found)


def _pooled(scores: Sequence[Score], elsewhere: bool = False) -> Estimate | None:
    """One metric of one model over sites; None where no site measured it."""
    measured = [(score, score.value) for score in scores if score.value is not None]
    if not measured:
        return None
    errors = [score.standard_error for score, _ in measured]
    return pool_estimates(measured[0][0].metric, [value for _, value in measured], errors, elsewhere)


def _bins(answer: EvaluationAnswer) -> list[BinTerms]:
    return [
        BinTerms(one.bin, one.rows, one.predicted, one.observed, one.effective_rows)
        for one in answer.calibration
    ]


def _regions(
    plan: StudyPlan, regions: Mapping[str, str], evaluations: Mapping[str, EvaluationAnswer]
) -> list[GroupEstimate]:
    members: dict[str, list[EvaluationAnswer]] = {}
    for site in sorted(evaluations):
        if regions.get(site):
            members.setdefault(regions[site], []).append(evaluations[site])
    return [
        _group(
            "region",
            region,
            [s for a in answers for s in a.scores if (s.model, s.metric) == (GLOBAL, plan.task.metric)],
            [a.test_rows for a in answers],
        )
        for region, answers in sorted(members.items())
    ]


def _subgroups(plan: StudyPlan, evaluations: Mapping[str, EvaluationAnswer]) -> list[GroupEstimate]:
    found = [one for site in sorted(evaluations) for one in evaluations[site].subgroups]
    groups = []
    for column, category in subgroups_of(plan):
        here = [one for one in found if (one.column, one.category) == (column, category)]
        if not here:
            continue
        scores = [one.score for one in here if one.score is not None]
        groups.append(_group("subgroup", f"{column}={category}", scores, [one.rows for one in here]))
    return groups


def _group(
    kind: Literal["region", "subgroup"], name: str, scores: Sequence[Score], rows: Sequence[int | None]
) -> GroupEstimate:
    """The figure of one site alone is that site's own affair, and is not told."""
    measured = [score for score in scores if score.value is not None]
    if len(measured) < _FEWEST:
        note = f"suppressed: fewer than {_FEWEST} sites have a figure that may be told"
        return GroupEstimate(kind=kind, name=name, note=note)
    known = [count for count in rows if count is not None]
    return GroupEstimate(
        kind=kind,
        name=name,
        rows=sum(known) if len(known) == len(rows) else None,
        estimate=_pooled(measured),
        note="" if len(known) == len(rows) else "some sites did not tell how many rows they have",
    )
