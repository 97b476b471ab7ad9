"""Signs of life with progress, from a thread of their own, so that a long fit never looks like a dead site.

While the agent is idle its long polls are sign enough, and nothing is sent. A sign that cannot be sent is
dropped: the next one comes soon, and the run loop notices by itself when the aggregator is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedmap.contract.v1.values import AgentInstance, HeartbeatRequest
from fedmap.errors import FedmapError
from fedmap.process.log import get_logger

Stage = Literal["idle", "loading", "training", "scoring", "review", "sending"]
Beat = Callable[[HeartbeatRequest], bool]


@dataclass(frozen=True)
class Doing:
    """What the agent is at."""

    study: str = ""
    task_id: str = ""
    stage: Stage = "idle"
    progress: float = 0.0


class Heartbeat:
    """Sends what the agent is doing, at once when that changes in kind and then at intervals."""

    def __init__(self, beat: Beat, instance: AgentInstance, seconds: float) -> None:
        self._beat = beat
        self._instance = instance
        self._seconds = seconds
        self._doing = Doing()
        self._news = threading.Condition()
        self._changed = False
        self._stopping = False
        self._closed: tuple[str, str] | None = None
        self._log = get_logger()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def doing(self) -> Doing:
        return self._doing

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A sign that is on its way is not waited for."""
        self._stopping = True
        if self._news.acquire(timeout=1.0):
            self._news.notify_all()
            self._news.release()

    def report(self, study: str, task_id: str, stage: Stage) -> None:
        """The agent does something else now."""
        self.at(study, task_id, stage, 0.0)

    def idle(self) -> None:
        self._doing = Doing()

    def at(self, study: str, task_id: str, stage: Stage, progress: float) -> None:
        """How far the agent is. A new stage goes out at once, progress with the next sign."""
        before, self._doing = self._doing, Doing(study, task_id, stage, min(max(progress, 0.0), 1.0))
        if (before.study, before.task_id, before.stage) != (study, task_id, stage):
            with self._news:
                self._changed = True
                self._news.notify_all()

    def _run(self) -> None:
        while True:
            with self._news:
                if not self._changed and not self._stopping:
                    self._news.wait(self._seconds)
                if self._stopping:
                    return
                self._changed = False
                doing = self._doing
            if doing.stage != "idle":
                self._send(doing)

    def _send(self, doing: Doing) -> None:
        try:
            still_open = self._beat(
                HeartbeatRequest(self._instance, doing.study, doing.task_id, doing.stage, doing.progress)
            )
        except FedmapError as error:
            self._log.debug("heartbeat_not_taken", code=error.code)
            return
        named = (doing.study, doing.task_id)
        if doing.task_id and not still_open and self._closed != named:
            self._closed = named
            self._log.warning("task_is_closed", study=named[0], task=named[1])
