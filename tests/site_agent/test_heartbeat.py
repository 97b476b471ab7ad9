"""Signs of life and the agent's own figures."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator

import pytest
import structlog

from fedmap.contract.v1.values import AgentInstance, HeartbeatRequest
from fedmap.errors import UnreachableError
from fedmap.process.log import configure
from fedmap_site.loop.heartbeat import Heartbeat

INSTANCE = AgentInstance("one", 1)
SECONDS = 30.0


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    before = structlog.get_config()
    stream = io.StringIO()
    configure("debug", stream)
    yield stream
    structlog.configure(**before)


class Aggregator:
    """Takes signs of life and lets a test wait for them."""

    def __init__(self) -> None:
        self.beats: list[HeartbeatRequest] = []
        self.open = True
        self.away = False
        self._came = threading.Condition()

    def __call__(self, beat: HeartbeatRequest) -> bool:
        with self._came:
            self.beats.append(beat)
            self._came.notify_all()
        if self.away:
            raise UnreachableError("away", hint="wait")
        return self.open

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.beats) >= count, SECONDS)


@pytest.fixture
def aggregator() -> Aggregator:
    return Aggregator()


@pytest.fixture
def heartbeat(aggregator: Aggregator) -> Iterator[Heartbeat]:
    made = Heartbeat(aggregator, INSTANCE, 0.02)
    made.start()
    yield made
    made.stop()


def test_a_new_stage_goes_out_at_once_and_progress_follows(
    aggregator: Aggregator, heartbeat: Heartbeat
) -> None:
    heartbeat.report("toy", "round-1", "training")
    aggregator.wait_for(1)
    heartbeat.report("toy", "round-1", "training", 0.5)
    aggregator.wait_for(3)
    assert (aggregator.beats[0].stage, aggregator.beats[0].task_id) == ("training", "round-1")
    assert aggregator.beats[-1].progress == 0.5
    assert aggregator.beats[-1].instance == INSTANCE


def test_a_task_that_was_closed_meanwhile_is_logged_once(
    aggregator: Aggregator, heartbeat: Heartbeat, log: io.StringIO
) -> None:
    aggregator.open = False
    heartbeat.report("toy", "round-1", "training")
    aggregator.wait_for(4)
    heartbeat.stop()
    closed = [line for line in log.getvalue().splitlines() if json.loads(line)["event"] == "task_is_closed"]
    assert len(closed) == 1
    assert json.loads(closed[0])["task"] == "round-1"


def test_a_sign_that_cannot_be_sent_is_dropped_and_the_next_one_follows(
    aggregator: Aggregator, heartbeat: Heartbeat, log: io.StringIO
) -> None:
    aggregator.away = True
    heartbeat.report("toy", "round-1", "training")
    aggregator.wait_for(3)
    assert "heartbeat_not_taken" in log.getvalue()
