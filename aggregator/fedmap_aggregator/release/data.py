"""Whom a model was trained and tested on: rows, events and empty cells of the sites as totals for the card.

Counts come rounded or not at all where a small one would show; what is not told is said, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedmap.bundles.manifest import DataSummary, MissingShare
from fedmap.contract.v1.values import EvaluationAnswer, StatisticsAnswer
from fedmap.study.plan.sections import Feature, FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan


def data_summary(
    plan: StudyPlan,
    found: Mapping[str, StatisticsAnswer],
    evaluations: Mapping[str, EvaluationAnswer],
    regions: Mapping[str, str],
) -> DataSummary | None:
    """Of the sites that trained; None where there is none. All mappings are by site."""
    if not found:
        return None
    rows = [answer.rows for answer in found.values()]
    events = [answer.events for answer in found.values() if answer.events is not None]
    tested = [answer.test_rows for answer in evaluations.values() if answer.test_rows is not None]
    test_events = [
        answer.test_events
        for answer in evaluations.values()
        if answer.test_rows is not None and answer.test_events is not None
    ]
    notes = []
    if events and len(events) == len(found):
        notes.append("training events are rounded site by site, so that no small count shows")
    elif plan.task.kind != "multiclass":
        notes.append(f"{len(found) - len(events)} of {len(found)} sites did not tell their training events")
    if len(tested) < len(evaluations):
        notes.append(
            f"{len(evaluations) - len(tested)} of {len(evaluations)} sites did not tell their test rows"
        )
    return DataSummary(
        training_rows=sum(rows),
        training_events=sum(events) if len(events) == len(found) else None,
        test_rows=sum(tested),
        test_events=sum(test_events) if tested and len(test_events) == len(tested) else None,
        smallest_site=min(rows),
        largest_site=max(rows),
        regions=tuple(sorted({regions.get(site, "") for site in found} - {""})),
        missing=tuple(_missing(feature, list(found.values())) for feature in plan.features),
        note="; ".join(notes),
    )


def _missing(feature: Feature, answers: Sequence[StatisticsAnswer]) -> MissingShare:
    name = feature.prefix if isinstance(feature, FeatureBlock) else feature.name
    rule = feature.missing
    words = f"filled with {rule.fill}" if rule.action == "fill" else rule.action
    counted = [one for answer in answers for one in answer.missing if one.feature == name]
    hidden = sum(one.cells is None for one in counted)
    notes = []
    if len(counted) < len(answers):
        notes.append(f"not counted at {len(answers) - len(counted)} of {len(answers)} sites")
    if hidden:
        notes.append(f"a few more, too few to tell, at {hidden} of {len(answers)} sites")
    total = sum(one.of for one in counted)
    share = sum(one.cells or 0 for one in counted) / total if total else None
    return MissingShare(column=name, rule=words, share=share, note="; ".join(notes))
