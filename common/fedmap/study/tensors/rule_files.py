"""The tensors of an answer to the rule task, as one file: baseline terms, reference terms, both or none.

What is in a file is known beforehand: a survival task has baseline terms, and the message says whether there
are reference terms. Reading is strict (`files.tensors`); whether the values are possible is the gate's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmap.algorithm.pooling.baseline import BaselineTerms
from fedmap.files.tensors import Expected, decode_tensors, encode_tensors
from fedmap.shift.told.terms import ReferenceTerms, decode_reference, encode_reference, expected_reference
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import baseline_of, expected_baseline, named_baseline


@dataclass(frozen=True)
class RuleTensors:
    """What a file held."""

    baseline: BaselineTerms | None = None
    reference: ReferenceTerms | None = None


def expected_rule(plan: StudyPlan, reference: bool) -> dict[str, Expected]:
    """Names, types and shapes of a site's file."""
    expected = expected_baseline(len(plan.task.grid)) if plan.task.kind == "cox" else {}
    return expected | (expected_reference(planned_inputs(plan).count) if reference else {})


def encode_rule(tensors: RuleTensors) -> bytes:
    """Empty where there are no terms."""
    named = {} if tensors.baseline is None else named_baseline(tensors.baseline)
    if tensors.reference is not None:
        named |= encode_reference(tensors.reference)
    return encode_tensors(named) if named else b""


def decode_rule(
    plan: StudyPlan, source: bytes | Path, joined: int, reference: bool, what: str = "the terms of the rule"
) -> RuleTensors:
    """`ModelError` or `RejectedError` where the file is not what the plan and the message say."""
    arrays = decode_tensors(source, expected_rule(plan, reference), what)
    return RuleTensors(
        baseline_of(arrays, joined, what) if plan.task.kind == "cox" else None,
        decode_reference(arrays, planned_inputs(plan).count) if reference else None,
    )
