"""Signs of life with progress, from a thread of their own, so that a long fit never looks like a dead site.

While the agent is idle its long polls are sign enough, and nothing is sent. A sign that cannot be sent is
dropped: the next one comes soon, and the run loop notices by itself when the aggregator is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from fedmap.contract.v1.values import AgentInstance, HeartbeatRequest
from fedmap.errors import FedmapError
from fedmap.process.log import get_logger

Stage = Literal["idle", "loading", "training", "scoring", "review", "sending"]
Beat = Callable[[HeartbeatRequest], bool]


class Heartbeat:
    """Sends what the agent is doing, at once when that changes in kind and then at intervals."""

    def __init__(self, beat: Beat, instance: AgentInstance, seconds: float) -> None:
        self._beat = beat
        self._seconds = seconds
        self._doing = self._idle = HeartbeatRequest(instance, stage="idle")
        self._news = threading.Condition()
        self._changed = False
        self._stopping = False
        self._closed: tuple[str, str] | None = None
        self._log = get_logger()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def doing(self) -> HeartbeatRequest:
        return self._doing

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A sign that is on its way is not waited for."""
        self._stopping = True
        if self._news.acquire(timeout=1.0):
            self._news.notify_all()
            self._news.release()

    def idle(self) -> None:
        self._doing = self._idle

    def report(self, study: str, task_id: str, stage: Stage, progress: float = 0.0) -> None:
        """What is done, and how far it is. A new stage goes out at once, progress with the next sign."""
        before, share = self._doing, min(max(progress, 0.0), 1.0)
        self._doing = HeartbeatRequest(self._idle.instance, study, task_id, stage, share)
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
            if doing is not self._idle:
                self._send(doing)

    def _send(self, doing: HeartbeatRequest) -> None:
        try:
            still_open = self._beat(doing)
        except FedmapError as error:
            self._log.debug("heartbeat_not_taken", code=error.code)
            return
        named = (doing.study, doing.task_id)
        if doing.task_id and not still_open and self._closed != named:
            self._closed = named
            self._log.warning("task_is_closed", study=named[0], task=named[1])
