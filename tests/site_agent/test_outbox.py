"""The outbox: nothing leaves unreviewed or altered, nothing is lost, and every step is on record."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from fedmap.contract.v1.values import Answer, FailureAnswer, FitAnswer, Receipt
from fedmap.errors import IntegrityError, NotFoundError, RejectedError, StateError
from fedmap.files.digests import sha256_hex
from fedmap.files.tensors import encode_tensors
from fedmap.process.fault_points import VARIABLE
from fedmap_site.exit.item import OutboxItem
from fedmap_site.exit.manifest import Check, Package, PolicyFacts, packed
from fedmap_site.exit.outbox import Outbox
from tests.forked_programs import run_forked
from tests.site_agent.stages import Bench

FACTS = PolicyFacts("d" * 64, "review", 50, 5, 10, 0.0, 0.0)


def package(round_number: int = 1, attempt: int = 1, log_omega: float = -0.5, made: int = 7) -> Package:
    tensors = encode_tensors({"trunk.0.bias": torch.ones(3)})
    answer = Answer(
        study="toy",
        task_id=f"round-{round_number}",
        attempt=attempt,
        site="north",
        terms_digest="e" * 64,
        tensors_digest=sha256_hex(tensors),
        tensors_size=len(tensors),
        fit=FitAnswer(log_omega),
    )
    return packed(answer, tensors, FACTS, (Check("x", "passed", "y"),), made)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def outbox(bench: Bench) -> Outbox:
    return bench.outbox


def receipt(item: OutboxItem) -> Receipt:
    return Receipt("toy", item.task_id, "north", item.answer_digest, 99)


def actions(bench: Bench) -> list[str]:
    bench.audit.verify()
    return [entry.action for entry in bench.audit.entries()]


def test_an_item_goes_from_review_to_sent_with_every_step_on_record(bench: Bench, outbox: Outbox) -> None:
    item = outbox.add(package(), "waiting_review")
    assert item.id == "toy.round-1.1"
    assert [found.id for found in outbox.items("waiting_review")] == [item.id]
    released = outbox.release(item.id, "Dr Grey")
    assert released.status.by == "Dr Grey"
    sent = outbox.mark_sent(item.id, receipt(item))
    assert sent.status.state == "sent"
    assert sent.status.received_unix_ms == 99
    assert actions(bench) == ["outbox.added", "outbox.released", "outbox.sent"]
    assert [entry.actor for entry in bench.audit.entries()] == ["agent", "Dr Grey", "agent"]


def test_the_same_receipt_twice_changes_nothing(bench: Bench, outbox: Outbox) -> None:
    item = outbox.add(package(), "released")
    outbox.mark_sent(item.id, receipt(item))
    outbox.mark_sent(item.id, receipt(item))
    assert actions(bench).count("outbox.sent") == 1


def test_a_receipt_for_other_bytes_is_refused(outbox: Outbox) -> None:
    item = outbox.add(package(), "released")
    with pytest.raises(IntegrityError, match="another answer"):
        outbox.mark_sent(item.id, Receipt(answer_digest="0" * 64))
    assert outbox.get(item.id).status.state == "released"


def test_what_waits_for_review_cannot_be_sent(outbox: Outbox) -> None:
    item = outbox.add(package(), "waiting_review")
    with pytest.raises(StateError, match="waiting review"):
        outbox.mark_sent(item.id, receipt(item))


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "x" * 101])
def test_nobody_releases_or_rejects_without_a_name(outbox: Outbox, name: str) -> None:
    item = outbox.add(package(), "waiting_review")
    for act in (outbox.release, outbox.reject):
        with pytest.raises(RejectedError, match="named"):
            act(item.id, name)


def test_a_rejected_answer_is_stood_in_for_by_a_failure_that_says_nothing(
    bench: Bench, outbox: Outbox
) -> None:
    item = outbox.add(package(), "waiting_review")
    assert outbox.reject(item.id, "Dr Grey").status.state == "rejected"
    stand_in = outbox.find("toy", "round-1", 1)
    assert stand_in is not None
    assert stand_in.id == "toy.round-1.1.withheld"
    assert stand_in.status.state == "released"
    answer = stand_in.answer()
    assert (answer.site, answer.terms_digest, answer.attempt) == ("north", "e" * 64, 1)
    assert answer.failure == FailureAnswer("withheld", "withheld by the site's reviewer")
    assert stand_in.tensors_path is None
    assert outbox.mark_sent(stand_in.id, receipt(stand_in)).status.state == "sent"
    with pytest.raises(StateError):
        outbox.release(item.id, "Dr White")
    assert actions(bench) == ["outbox.added", "outbox.rejected", "outbox.added", "outbox.sent"]


@pytest.mark.parametrize("end", ["sent", "refused", "withdrawn", "rejected"])
def test_a_closed_item_cannot_be_opened_again(outbox: Outbox, end: str) -> None:
    item = outbox.add(package(), "waiting_review" if end == "rejected" else "released")
    match end:
        case "sent":
            outbox.mark_sent(item.id, receipt(item))
        case "refused":
            outbox.mark_refused(item.id, "stale", "the task is closed")
        case "withdrawn":
            outbox.withdraw(item.id, "left the study")
        case _:
            outbox.reject(item.id, "Dr Grey")
    for again in (outbox.release, outbox.reject, outbox.withdraw):
        with pytest.raises(StateError):
            again(item.id, "Dr Grey")


def test_a_refusal_is_kept_with_its_code_and_reason(outbox: Outbox) -> None:
    item = outbox.add(package(), "released")
    status = outbox.mark_refused(item.id, "rejected", "the norm is absurd").status
    assert (status.state, status.code, status.reason) == ("refused", "rejected", "the norm is absurd")


def test_an_answer_is_found_by_task_and_attempt_and_never_made_twice(outbox: Outbox) -> None:
    first = outbox.add(package(), "released")
    again = outbox.add(package(log_omega=-9.0), "released")
    assert again.answer_digest == first.answer_digest
    assert outbox.find("toy", "round-1", 2) is None
    assert outbox.find("toy", "round-2", 1) is None
    outbox.add(package(attempt=2), "released")
    assert outbox.find("toy", "round-1", 2) is not None


def test_a_rejected_answer_is_not_made_again(outbox: Outbox) -> None:
    item = outbox.add(package(), "waiting_review")
    outbox.reject(item.id, "Dr Grey")
    assert outbox.add(package(), "released").id == "toy.round-1.1.withheld"


@pytest.mark.parametrize("file", ["answer.pb", "tensors.safetensors"])
def test_an_item_altered_on_disk_is_neither_released_nor_sent(outbox: Outbox, file: str) -> None:
    item = outbox.add(package(), "waiting_review")
    path = item.folder / file
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError, match="changed"):
        outbox.release(item.id, "Dr Grey")
    with pytest.raises(IntegrityError, match="changed"):
        outbox.get(item.id).answer()
    assert outbox.reject(item.id, "Dr Grey").status.state == "rejected"


@pytest.mark.parametrize(
    "name", ["../state", "toy.round-1.9", "", "toy", "toy.round-1.1/..", "toy.round-1.x"]
)
def test_an_unknown_or_hostile_name_is_not_found(outbox: Outbox, name: str) -> None:
    outbox.add(package(), "released")
    with pytest.raises(NotFoundError):
        outbox.get(name)


@pytest.mark.parametrize("task_id", ["../../x", "", "round-", "round-0", "Round-1", "round-1/.."])
def test_a_hostile_task_name_never_becomes_a_path(outbox: Outbox, task_id: str) -> None:
    with pytest.raises(RejectedError):
        outbox.find("toy", task_id, 1)


def test_items_are_listed_oldest_first(outbox: Outbox) -> None:
    for number in (2, 10, 1):
        outbox.add(package(number, made=100 - number), "released")
    assert [item.task_id for item in outbox.items()] == ["round-10", "round-2", "round-1"]


SCRIPT = """
import sys
from pathlib import Path
from tests.site_agent.stages import Bench
from tests.site_agent.test_outbox import package
bench = Bench(Path(sys.argv[1]))
if sys.argv[2] == "add":
    bench.outbox.add(package(), "waiting_review")
elif sys.argv[2] == "release":
    bench.outbox.release("toy.round-1.1", "Dr Grey")
else:
    bench.outbox.reject("toy.round-1.1", "Dr Grey")
"""


def killed(folder: Path, action: str, point: str) -> None:
    """Run one action in a process that is killed at a point of it."""
    done = run_forked("-c", [SCRIPT, str(folder), action], {**os.environ, VARIABLE: point})
    assert done.returncode == -signal.SIGKILL


def test_killed_while_an_item_is_written_there_is_none_and_it_can_be_made_again(tmp_path: Path) -> None:
    killed(tmp_path, "add", "agent.outbox_before_rename")
    bench = Bench(tmp_path)
    assert bench.outbox.items() == ()
    assert list(bench.state.outbox_folder.glob(".new-*"))
    bench.outbox.clear_leftovers()
    assert not list(bench.state.outbox_folder.glob(".new-*"))
    assert bench.outbox.add(package(), "waiting_review").status.state == "waiting_review"
    bench.audit.verify()


def test_killed_while_it_is_released_an_item_still_waits_and_can_be_released(tmp_path: Path) -> None:
    Bench(tmp_path).outbox.add(package(), "waiting_review")
    killed(tmp_path, "release", "agent.outbox_before_status")
    bench = Bench(tmp_path)
    assert bench.outbox.get("toy.round-1.1").status.state == "waiting_review"
    bench.outbox.release("toy.round-1.1", "Dr Grey")
    assert actions(bench).count("outbox.released") == 2


def test_killed_while_it_is_rejected_an_item_stays_rejected(tmp_path: Path) -> None:
    Bench(tmp_path).outbox.add(package(), "waiting_review")
    killed(tmp_path, "reject", "agent.outbox_before_status")
    bench = Bench(tmp_path)
    assert bench.outbox.get("toy.round-1.1").status.state == "rejected"
    with pytest.raises(StateError):
        bench.outbox.release("toy.round-1.1", "Dr Grey")
    found = bench.outbox.find("toy", "round-1", 1)
    assert found is not None
    assert found.content == "failure"


def test_killed_before_the_stand_in_is_there_the_item_still_waits(tmp_path: Path) -> None:
    Bench(tmp_path).outbox.add(package(), "waiting_review")
    killed(tmp_path, "reject", "agent.outbox_before_rename")
    bench = Bench(tmp_path)
    assert bench.outbox.get("toy.round-1.1").status.state == "waiting_review"
    assert bench.outbox.reject("toy.round-1.1", "Dr Grey").status.state == "rejected"
