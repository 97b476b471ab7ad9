"""The decision rule that a release carries, and whether a round's model can be released at all.

The sites settle the rule of the final model only. A model of an earlier round has a fixed threshold where
the plan fixes one; a survival model without its baseline hazard gives no risk, and is not released.
"""

from __future__ import annotations

from fedmap.bundles.manifest import BaselineValues, ThresholdValue
from fedmap.contract.v1.values import GlobalRule
from fedmap.errors import NotFoundError, StateError
from fedmap.study.course.state import StudyState
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.record import StudyRecord

_STAND_IN = 0.5


def releasable_round(plan: StudyPlan, state: StudyState, asked: int | None) -> int:
    """The round whose model is to be released, the last one unless another is asked for."""
    name = state.study
    if state.purged_at is not None:
        raise StateError(
            f"what was computed in {name} was deleted",
            hint="bundles that were released before are kept: `fedmap-aggregator bundle list` shows them",
        )
    number = state.rounds if asked is None else asked
    if asked is None and state.phase == "aborted":
        number = state.rounds_done
    if state.rounds_done == 0:
        raise StateError(
            f"{name} has no model yet: it is in the phase {state.phase}",
            hint="a model exists when the first round is computed; watch the study with `status --watch`",
        )
    if number > state.rounds:
        raise NotFoundError(f"{name} has {state.rounds} rounds", hint=f"give a --round up to {state.rounds}")
    if number > state.rounds_done:
        raise StateError(
            f"{name} has computed {state.rounds_done} of {state.rounds} rounds",
            hint=f"wait for the end of the study; or release round {state.rounds_done} as it is with "
            f"--round {state.rounds_done}, without figures",
        )
    if number == state.rounds and not state.over:
        raise StateError(
            f"the sites are still measuring the last model of {name} (phase {state.phase})",
            hint="wait until the study is complete, so that the bundle carries its figures",
        )
    if plan.task.kind == "cox" and (
        number < state.rounds or state.rule is None or not state.rule.baseline_grid
    ):
        raise StateError(
            f"round {number} of {name} has no baseline hazard, so its model gives no risk",
            hint="the sites send what it needs after the last round: release the last round of a complete "
            "study. If this is it, its sites had too few events to tell",
        )
    return number


def threshold_of(record: StudyRecord, number: int) -> ThresholdValue | None:
    """Binary tasks: the sites' threshold, the plan's fixed one, or 0.5 with a word that it stands in."""
    task, rule = record.terms.plan.task, _rule(record, number)
    if task.kind != "binary":
        return None
    if rule.threshold is not None:
        return ThresholdValue(value=rule.threshold, note=rule.threshold_note)
    if task.threshold is not None and task.threshold.rule == "fixed" and task.threshold.value is not None:
        return ThresholdValue(value=task.threshold.value)
    asked = task.threshold.rule if task.threshold is not None else "no"
    return ThresholdValue(
        value=_STAND_IN,
        note=f"the plan's {asked} rule was not applied to the model of this round; {_STAND_IN} stands in",
    )


def baseline_of(record: StudyRecord, number: int) -> BaselineValues | None:
    """Survival tasks: the pooled baseline hazard, which the last round's model has."""
    rule = _rule(record, number)
    if not rule.baseline_grid:
        return None
    return BaselineValues(grid=rule.baseline_grid, cumulative=rule.baseline_cumulative)


def _rule(record: StudyRecord, number: int) -> GlobalRule:
    """The sites' rule, which belongs to the model of the last round."""
    return record.rule if record.rule is not None and number == record.terms.rounds else GlobalRule()
