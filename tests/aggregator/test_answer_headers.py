"""The gate on the first message: answers to something else and uploads without end do not begin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.study.course.state import TaskKind
from fedmap_aggregator.gate.headers import GateLimits, check_header, expected_tensor_bytes
from tests.aggregator import small_study as made
from tests.aggregator.at_the_gate import (
    BINARY,
    LIMITS,
    SURVIVAL,
    checked,
    refused,
    told,
)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("site", "south", "another site"),
        ("study", "other-study", "another study"),
        ("terms_digest", "0" * 64, "other terms"),
        ("task_id", "round-2", "not to the open task"),
        ("attempt", 2, "not asked for"),
        ("attempt", 0, "not asked for"),
        ("tensors_digest", "../../etc/passwd", "digest"),
        ("tensors_digest", "", "digest"),
    ],
)
def test_an_answer_to_something_else_is_refused_before_its_tensors(
    field: str, value: str | int, reason: str
) -> None:
    message = made.answer(BINARY, made.task("fit"), made.fit_bytes(BINARY))
    message.fit.log_omega = -1.0
    check_header(BINARY.terms, made.task("fit"), told(message), "north", LIMITS)
    setattr(message, field, value)
    with refused(reason):
        check_header(BINARY.terms, made.task("fit"), told(message), "north", LIMITS)


def test_an_answer_without_content_is_refused() -> None:
    with refused("is empty"):
        message = told(made.answer(BINARY, made.task("fit")))
        check_header(BINARY.terms, made.task("fit"), message, "north", LIMITS)


def test_content_of_another_kind_of_task_is_refused() -> None:
    data = made.theta_bytes(BINARY)
    message = made.answer(BINARY, made.task("fit"), data)
    message.initial_model.SetInParent()
    with refused("does not fit a fit task"):
        checked(BINARY, "fit", message, data)


# --- sizes


def _sent(kind: TaskKind, size: int, limits: GateLimits = LIMITS) -> None:
    message = made.answer(BINARY, made.task(kind))
    message.tensors_size, message.tensors_digest = size, "0" * 64 if size else ""
    content = {"initialise": "initial_model", "evaluate": "evaluation"}.get(kind, kind)
    getattr(message, content).SetInParent()
    check_header(BINARY.terms, made.task(kind), told(message), "north", limits)


def test_the_plan_alone_gives_the_size_of_every_answer() -> None:
    honest: dict[TaskKind, bytes] = {
        "statistics": made.statistics_bytes(),
        "initialise": made.theta_bytes(BINARY),
        "fit": made.fit_bytes(BINARY),
    }
    for kind, data in honest.items():
        bounds = expected_tensor_bytes(BINARY.terms, kind)
        assert bounds.least <= len(data) <= bounds.most
    bounds = expected_tensor_bytes(SURVIVAL.terms, "rule")
    assert bounds.least <= len(made.baseline_bytes()) <= bounds.most
    assert expected_tensor_bytes(BINARY.terms, "rule").most == 0
    assert expected_tensor_bytes(BINARY.terms, "evaluate").most == 0


@given(st.integers(0, 2**64 - 1), st.sampled_from(["statistics", "initialise", "fit", "rule", "evaluate"]))
def test_an_announced_size_that_the_plan_does_not_give_is_refused(size: int, kind: TaskKind) -> None:
    bounds = expected_tensor_bytes(BINARY.terms, kind)
    none_is_fine = kind in ("fit", "rule", "evaluate") and size == 0
    if none_is_fine or bounds.least <= size <= bounds.most:
        _sent(kind, size)
        return
    with refused("bytes"):
        _sent(kind, size)


def test_a_plan_with_a_huge_model_is_held_to_the_operators_limit() -> None:
    with refused("larger than the aggregator takes"):
        _sent("fit", len(made.fit_bytes(BINARY)), replace(LIMITS, max_tensor_bytes=100))


def test_statistics_without_tensors_are_refused() -> None:
    with refused("bytes"):
        _sent("statistics", 0)


def test_a_failure_brings_no_tensors() -> None:
    message = made.answer(BINARY, made.task("fit"), made.fit_bytes(BINARY))
    message.failure.code = "training"
    with refused("bytes"):
        check_header(BINARY.terms, made.task("fit"), told(message), "north", LIMITS)
