"""Answers of each kind, shown to the gate: what the tests of its parts share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedmap.algorithm.pooling.statistics import FeatureStatistics
from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1.values import Answer
from fedmap.errors import RejectedError
from fedmap.study.course.state import TaskKind
from fedmap.study.tensors.parameter_files import encode_statistics
from fedmap_aggregator.gate.headers import GateLimits
from fedmap_aggregator.gate.updates import CheckedAnswer, check_answer
from tests.aggregator import small_study as made
from tests.aggregator.small_study import Small

LIMITS = GateLimits(norm_factor=20.0, max_log_omega=1e9, max_tensor_bytes=1 << 20)
BINARY = made.small()
SURVIVAL = made.small(made.SURVIVAL)


def told(message: pb.Answer) -> Answer:
    """As the gate gets it."""
    return wire.read(Answer, message.SerializeToString())


def checked(
    study: Small,
    kind: TaskKind,
    message: pb.Answer,
    tensors: bytes,
    round_number: int = 1,
    cohort_norm: float | None = None,
) -> CheckedAnswer:
    with TemporaryDirectory() as folder:
        path = made.at(Path(folder), tensors) if tensors else None
        asked = made.task(kind, round_number)
        return check_answer(study.terms, study.model, asked, told(message), path, LIMITS, cohort_norm)


def fit(
    tensors: bytes | None = None,
    log_omega: float | None = -0.7,
    study: Small = BINARY,
    round_number: int = 1,
    cohort_norm: float | None = None,
    scores: Iterable[pb.Score] = (),
    **content: float,
) -> CheckedAnswer:
    data = made.fit_bytes(study) if tensors is None else tensors
    message = made.answer(study, made.task("fit", round_number), data)
    message.fit.SetInParent()
    for name, value in {**content, **({} if log_omega is None else {"log_omega": log_omega})}.items():
        setattr(message.fit, name, value)
    message.fit.validation_scores.extend(scores)
    return checked(study, "fit", message, data, round_number, cohort_norm)


def statistics(sums: FeatureStatistics, study: Small = BINARY) -> CheckedAnswer:
    data = encode_statistics(sums)
    message = made.answer(study, made.task("statistics"), data)
    message.statistics.rows = sums.rows
    message.statistics.layout_digest = made.LAYOUT
    return checked(study, "statistics", message, data)


def rule(study: Small, data: bytes = b"", joined: int = 0, **content: float) -> CheckedAnswer:
    message = made.answer(study, made.task("rule"), data)
    message.rule.joined_intervals = joined
    for name, value in content.items():
        setattr(message.rule, name, value)
    return checked(study, "rule", message, data)


def evaluation(*scores: pb.Score) -> CheckedAnswer:
    message = made.answer(BINARY, made.task("evaluate"))
    message.evaluation.scores.extend(scores)
    return checked(BINARY, "evaluate", message, b"")


def failure(code: str = "training", reason: str = "the fit diverged") -> CheckedAnswer:
    message = made.answer(BINARY, made.task("fit"))
    message.failure.code, message.failure.reason = code, reason
    return checked(BINARY, "fit", message, b"")


def score(metric: str = "auroc", model: str = "personal", value: float = 0.8, note: str = "") -> pb.Score:
    return pb.Score(model=model, metric=metric, value=value, note=note)


@contextmanager
def refused(match: str) -> Iterator[None]:
    """One plain reason, and a hint for the site."""
    with pytest.raises(RejectedError, match=match) as caught:
        yield
    assert caught.value.hint
    assert "\n" not in caught.value.message
