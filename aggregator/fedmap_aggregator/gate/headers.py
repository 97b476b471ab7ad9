"""The gate's first half: does an answer belong here, and how large may its tensors be?

Looks at the message alone, so that an upload without end is refused before it begins. Content is judged in
`updates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fedmap.algorithm.fit.values import Model
from fedmap.contract.v1.values import (
    Answer,
    EvaluationAnswer,
    FailureAnswer,
    FitAnswer,
    InitialModelAnswer,
    RuleAnswer,
    StatisticsAnswer,
)
from fedmap.errors import RejectedError
from fedmap.files.digests import is_digest
from fedmap.study.answers import Content, content_of
from fedmap.study.course.state import OpenTask, TaskKind
from fedmap.study.models import model_of
from fedmap.study.tensors.rule_files import expected_rule
from fedmap.study.terms import StudyTerms

_CONTENT: Mapping[TaskKind, type[Content]] = {
    "statistics": StatisticsAnswer,
    "initialise": InitialModelAnswer,
    "fit": FitAnswer,
    "rule": RuleAnswer,
    "evaluate": EvaluationAnswer,
}
SAME_VERSION = "check that the site runs the study's terms and a version that fits the aggregator's"
_HEADER_PER_NAME = 512  # bytes that a safetensors header may take for one tensor


@dataclass(frozen=True)
class GateLimits:
    """The operator's limits; what the plan says holds besides."""

    norm_factor: float = 20.0
    """How many times the cohort's norm a site's parameters may have."""
    max_log_omega: float = 1e9
    max_tensor_bytes: int = 2 << 30


@dataclass(frozen=True)
class TensorBytes:
    """How large the tensors of an answer may be. The least is their values, the most adds a header."""

    least: int
    most: int


def expected_tensor_bytes(
    terms: StudyTerms, kind: TaskKind, model: Model | None = None, reference: bool = False
) -> TensorBytes:
    """From the plan alone; for tasks without tensors both are 0. `reference`: a rule with reference terms."""
    plan = terms.plan
    network = (model or model_of(plan)).network
    values, names = 0, 0
    match kind:
        case "statistics":
            values, names = 2 * 8 * network.inputs, 2
        case "initialise" | "fit":
            values, names = 4 * network.spec.size, len(network.spec.names)
            if kind == "fit" and network.channels:
                values += 2 * 4 * sum(network.channels) + 8 * len(network.channels)
                names += 3
        case "rule":
            tensors = expected_rule(plan, reference)
            values, names = sum(8 * prod(one.shape) for one in tensors.values()), len(tensors)
        case "evaluate":
            pass
    return TensorBytes(values, values + _HEADER_PER_NAME * (names + 1) if names else 0)


def check_header(
    terms: StudyTerms,
    task: OpenTask,
    answer: Answer,
    site: str,
    limits: GateLimits,
    model: Model | None = None,
) -> None:
    """Steps 1 and 2, on the first message of an upload: an endless one is refused before it begins."""
    demand(answer.site == site, "the answer names another site than its sender")
    demand(answer.study == terms.study, "the answer belongs to another study")
    demand(answer.terms_digest == terms.digest, "the answer was made under other terms of the study")
    demand(answer.task_id == task.id, f"the answer is not to the open task, {task.id}")
    demand(1 <= answer.attempt <= task.attempt, "the answer is to an attempt that was not asked for")
    content = content_of(answer)
    demand(content is not None, "the answer is empty")
    known = isinstance(content, (_CONTENT[task.kind], FailureAnswer))
    demand(known, f"the answer's content does not fit a {task.kind} task")
    size = answer.tensors_size
    demand(
        is_digest(answer.tensors_digest) if size else not answer.tensors_digest,
        "the answer's tensors have a size without a digest, or a digest without a size",
    )
    demand(
        size <= limits.max_tensor_bytes,
        f"the answer's tensors are larger than the aggregator takes ({limits.max_tensor_bytes:,} bytes)",
        "ask the operator to raise limits.max_answer_mib",
    )
    expected = TensorBytes(0, 0)
    if not isinstance(content, FailureAnswer):
        reference = isinstance(content, RuleAnswer) and content.reference
        expected = expected_tensor_bytes(terms, task.kind, model, reference)
    none_needed = isinstance(content, (FitAnswer, RuleAnswer)) and not size
    demand(
        none_needed or expected.least <= size <= expected.most,
        f"the answer's tensors have {size:,} bytes, the plan gives {expected.least:,} to {expected.most:,}",
    )


def demand(holds: bool, otherwise: str, hint: str = SAME_VERSION) -> None:
    """Refuse the answer unless it is as it must be."""
    if not holds:
        raise RejectedError(otherwise, hint=hint)
