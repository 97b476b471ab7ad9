"""Carries released answers to the aggregator, and knows which tasks this site has in hand.

A receipt ends an item. So does a refusal that another attempt would only meet again: the item is marked with
the reason, which the outbox records. Anything else leaves the item where it is, to be sent again later,
without holding up the others. Nothing is computed here, and nothing is sent that was not released.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fedmap.contract.v1.values import TaskInHand
from fedmap.errors import (
    ConflictError,
    FedmapError,
    NotAllowedError,
    NotFoundError,
    RejectedError,
    StaleError,
    StateError,
    UnreachableError,
)
from fedmap.process.log import get_logger
from fedmap_site.exit.item import OutboxItem
from fedmap_site.exit.outbox import Outbox
from fedmap_site.link.connection import Connection
from fedmap_site.loop.heartbeat import Heartbeat
from fedmap_site.loop.notices import Notice, Tell
from fedmap_site.loop.stopping import Stop
from fedmap_site.metrics import SiteMetrics

ENDING = (StaleError, RejectedError, ConflictError, NotFoundError, StateError)
"""Refusals of one answer that trying again cannot change."""
RETRY_SECONDS = 60.0


@dataclass
class Courier:
    """The open items of the outbox, kept in memory so that a long outbox is read only once."""

    outbox: Outbox
    connection: Connection
    heartbeat: Heartbeat
    metrics: SiteMetrics
    tell: Tell
    stop: Stop

    def __post_init__(self) -> None:
        self._log = get_logger()
        self._open: dict[str, OutboxItem] = {}
        self._not_before: dict[str, float] = {}
        for item in self.outbox.items("waiting_review", "released"):
            self.add(item)
        self.show()

    def add(self, item: OutboxItem) -> None:
        """One more item to look after. One that was sent before is sent once more: the centre lost it."""
        self._open[item.id] = item

    @property
    def waiting(self) -> tuple[OutboxItem, ...]:
        """Items that wait for a person."""
        return tuple(item for item in self._open.values() if item.status.state == "waiting_review")

    def in_hand(self) -> list[TaskInHand]:
        return [TaskInHand(item.study, item.task_id, item.attempt) for item in self._open.values()]

    def counts(self) -> Mapping[str, int]:
        return Counter(item.status.state for item in self._open.values())

    def look_again(self) -> bool:
        """What a person has decided meanwhile; whether something can be sent now."""
        for item in self.waiting:
            found = self.outbox.find(item.study, item.task_id, item.attempt)
            if found is not None and found.id == item.id and found.status == item.status:
                continue
            del self._open[item.id]
            if found is not None and found.status.state in ("waiting_review", "released"):
                self.add(found)
        return bool(self._ready())

    def send(self) -> None:
        """Send what is released, oldest first. `UnreachableError` and a shut door end the attempt."""
        for item in self._ready():
            try:
                self._send(item)
            except ENDING as error:
                self._end(item, error)
            except (UnreachableError, NotAllowedError):
                raise
            except FedmapError as error:
                self._not_before[item.id] = time.monotonic() + RETRY_SECONDS
                self._log.warning("answer_not_sent", study=item.study, task=item.task_id, code=error.code)
                self.tell(Notice.of(error, item.id))
        self.show()

    def show(self) -> None:
        """Tell the metrics what is in the outbox now."""
        oldest = min((item.manifest.made_unix_ms for item in self.waiting), default=None)
        self.metrics.show_outbox(self.counts(), oldest)

    def _ready(self) -> list[OutboxItem]:
        now = time.monotonic()
        for item in [item for item in self._open.values() if not item.folder.is_dir()]:
            del self._open[item.id]  # purged with its study
        return [
            item
            for item in self._open.values()
            if item.status.state != "waiting_review" and self._not_before.get(item.id, 0.0) <= now
        ]

    def _send(self, item: OutboxItem) -> None:
        self.heartbeat.report(item.study, item.task_id, "sending")
        answer = item.answer_bytes()
        with self.metrics.timed("send"), self.stop.abandonable():
            receipt = self.connection.submit(answer, item.tensors_path)
        self.outbox.mark_sent(item.id, receipt)
        del self._open[item.id]
        self._log.info(
            "answer_sent",
            study=item.study,
            task=item.task_id,
            attempt=item.attempt,
            kind=item.content,
            digest=item.answer_digest,
            bytes=item.manifest.tensors_bytes,
        )

    def _end(self, item: OutboxItem, error: FedmapError) -> None:
        del self._open[item.id]
        if item.status.state == "released":
            self.outbox.mark_refused(item.id, error.code, error.message)
        self.metrics.tasks.labels(item.content, "refused").inc()
        self._log.warning("answer_refused", study=item.study, task=item.task_id, code=error.code)
        self.tell(Notice.of(error, f"{item.id} was refused"))
