"""Tasks and answers as Flower records, and back. Reading is strict: whatever no FedMAP side sends is refused.

The messages are those of the contract, serialised; tensors are safetensors bytes in an `Array`, which Flower
cuts into chunks. Nothing is pickled. What a task or an answer means is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer, Task, TaskKind
from fedmap.errors import RejectedError

TASK, ANSWER, TENSORS = "fedmap.task", "fedmap.answer", "fedmap.tensors"
STYPE = "safetensors"
MOST_REGION = 100
MESSAGE_TYPES: Final[Mapping[TaskKind, str]] = {
    "statistics": "query.statistics",
    "initialise": "query.initialise",
    "fit": "train",
    "rule": "query.rule",
    "evaluate": "evaluate",
}
"""Flower's word for each kind of task."""
_HINT = "Check that both sides run the same version of fedmap, and nothing else in this Flower run."


@dataclass(frozen=True)
class Order:
    """What a node is asked: a task, the terms it belongs to, and the prior to start from."""

    task: Task
    terms_json: str
    prior: bytes = b""


@dataclass(frozen=True)
class Reply:
    """What a node says, before the gate has looked at it."""

    answer: Answer
    region: str = ""
    tensors: bytes = b""


def tensor_record(data: bytes) -> ArrayRecord:
    """One file of tensors, as it is on a disk."""
    return ArrayRecord({STYPE: Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)})


def tensor_bytes(record: ArrayRecord) -> bytes:
    """The bytes of `tensor_record`; RejectedError for any other record."""
    array = record.get(STYPE)
    if array is None or len(record) != 1 or array.stype != STYPE or array.shape != (len(array.data),):
        raise _refused("the tensors are not one safetensors file")
    return bytes(array.data)


def order_record(order: Order) -> RecordDict:
    task = ConfigRecord({"task": wire.write(order.task), "terms": order.terms_json})
    content = RecordDict({TASK: task})
    if order.prior:
        content[TENSORS] = tensor_record(order.prior)
    return content


def read_order(content: RecordDict) -> Order:
    """What the server app asks; RejectedError for a message that is not FedMAP's."""
    values = _config(content, TASK)
    data, terms = values.get("task"), values.get("terms")
    if not isinstance(data, bytes) or not isinstance(terms, str):
        raise _refused("the message holds no task with its terms")
    return Order(wire.read(Task, data), terms, _tensors(content))


def reply_record(reply: Reply) -> RecordDict:
    answer = ConfigRecord({"answer": wire.write(reply.answer), "region": reply.region})
    content = RecordDict({ANSWER: answer})
    if reply.tensors:
        content[TENSORS] = tensor_record(reply.tensors)
    return content


def read_reply(content: RecordDict) -> Reply:
    """What a node answered; RejectedError for a reply that is not FedMAP's."""
    values = _config(content, ANSWER)
    data, region = values.get("answer"), values.get("region")
    if not isinstance(data, bytes) or not isinstance(region, str):
        raise _refused("the reply holds no answer")
    if len(region) > MOST_REGION or not region.isprintable():
        raise _refused(f"the region is over {MOST_REGION} characters, or not printable")
    return Reply(wire.read(Answer, data), region, _tensors(content))


def _config(content: RecordDict, name: str) -> ConfigRecord:
    record = content.get(name)
    if not isinstance(record, ConfigRecord) or not set(content) <= {name, TENSORS}:
        raise _refused(f"the message does not hold {name}, or holds something else besides")
    return record


def _tensors(content: RecordDict) -> bytes:
    if TENSORS not in content:
        return b""
    record = content[TENSORS]
    if not isinstance(record, ArrayRecord):
        raise _refused("the tensors are no array record")
    return tensor_bytes(record)


def _refused(what: str) -> RejectedError:
    return RejectedError(what, hint=_HINT)
