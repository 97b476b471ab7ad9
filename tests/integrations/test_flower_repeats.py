"""A server app that means harm: it gets one noise for each task, and no task that the terms do not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from fedmap.contract.v1.values import FailureAnswer, Task
from fedmap.files.digests import sha256_hex
from fedmap.study.answers import content_as
from fedmap.study.terms import StudyTerms
from fedmap_flower.centre.strategy import FedMAP
from fedmap_flower.records import MESSAGE_TYPES, Order, Reply, order_record, read_reply
from tests.integrations.conftest import POLICY, NodeInHand, grid_in_hand


@pytest.fixture
def prior(terms: StudyTerms, nodes: dict[int, NodeInHand], tmp_path: Path) -> bytes:
    """The first one, of nodes whose policy adds noise."""
    (tmp_path / "policy.toml").write_text(POLICY + "clip_norm = 5.0\nnoise_multiplier = 0.5\n")
    (tmp_path / "scratch").mkdir()
    strategy = FedMAP(terms, tmp_path / "scratch")
    strategy.open(grid_in_hand(nodes), 3)
    return strategy.prior


def ask(
    node: NodeInHand, terms: StudyTerms, prior: bytes, name: str = "round-1", number: int = 1, run: int = 1
) -> Reply:
    task = Task(terms.study, name, "fit", number, terms.digest, sha256_hex(prior), len(prior), attempt=1)
    node.context.run_id = run
    order = order_record(Order(task, terms.to_json(), prior))
    message = Message(order, 1, MESSAGE_TYPES[task.kind], group_id=name)
    return read_reply(node.app(message=message, context=node.context).content)


def test_a_task_that_is_asked_again_is_not_blurred_anew(
    terms: StudyTerms, nodes: dict[int, NodeInHand], prior: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    replies = [ask(nodes[1], terms, prior, run=run) for run in (1, 1, 777)]
    assert replies[0].answer.fit is not None
    assert replies[0].tensors
    assert replies[1:] == replies[:1] * 2
    changed = bytearray(prior)
    changed[-1] ^= 1
    other = ask(nodes[1], terms, bytes(changed))
    assert (content_as(FailureAnswer, other.answer).code, other.tensors) == ("rejected", b"")
    assert "answered before under these terms" in capfd.readouterr().err


@pytest.mark.parametrize(("name", "number"), [("whatever", 99), ("round-3", 3), ("round-2", 1)])
def test_a_task_that_is_no_step_of_the_terms_is_not_answered(
    name: str, number: int, terms: StudyTerms, nodes: dict[int, NodeInHand]
) -> None:
    reply = ask(nodes[1], terms, b"", name, number)
    assert (content_as(FailureAnswer, reply.answer).code, reply.tensors) == ("rejected", b"")
