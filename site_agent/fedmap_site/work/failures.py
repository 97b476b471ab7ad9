"""What the centre hears of a task that could not be done, as messages of the contract."""

from __future__ import annotations

from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.errors import FedmapError
from fedmap.study import failures
from fedmap.study.failures import UNEXPECTED

__all__ = ["UNEXPECTED", "failure_answer", "failure_of"]


def failure_answer(error: FedmapError) -> pb.FailureAnswer:
    return failure_of(error.code)


def failure_of(code: str) -> pb.FailureAnswer:
    told = failures.failure_of(code)
    return pb.FailureAnswer(code=told.code, reason=told.reason)
