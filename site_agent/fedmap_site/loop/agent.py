"""The run loop: renew when due, send what is released, ask for a task, do it; again, until told to stop.

It never ends because the aggregator is away, refuses this site, or a disk is full: it says so once, waits
longer and longer, and goes on. The policy is read anew in every turn, and without a readable one nothing is
computed or sent. The loop decides the order; each step is a module of its own.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1 import values
from fedmap.errors import (
    ConflictError,
    FedmapError,
    IncompatibleError,
    NotAllowedError,
    StateError,
    UnreachableError,
    WithdrawnError,
)
from fedmap.process.log import get_logger
from fedmap_site.identity.renewal import Renewal
from fedmap_site.link.clock_skew import skew_of
from fedmap_site.link.connection import Connection
from fedmap_site.loop.courier import Courier
from fedmap_site.loop.desk import TaskDesk, kind_of
from fedmap_site.loop.heartbeat import Heartbeat
from fedmap_site.loop.notices import Notice, Tell
from fedmap_site.loop.status import AgentStatus
from fedmap_site.loop.stopping import Abandoned, Stop
from fedmap_site.loop.workplace import Workplace
from fedmap_site.metrics import SiteMetrics
from fedmap_site.state.audit_log import AuditLog

REVIEW_SECONDS = 2.0  # how often a waiting agent looks for releases
SHUT_OUT = (NotAllowedError, ConflictError, IncompatibleError)
"""Refusals of this site as a whole: somebody has to act, so asking often is no use."""
TaskKey = tuple[str, str, int]


class Backoff:
    """Waits that grow from a second to the longest, with jitter: sites must not all come back at once."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next(self, error: FedmapError) -> float:
        """Seconds to wait after one more failure."""
        self._failures += 1
        grown = min(self._longest, 2.0 ** min(self._failures - 1, 20))
        seconds = self._longest if isinstance(error, SHUT_OUT) else grown
        return seconds * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class AgentSettings:
    """The parts of the configuration that the loop itself needs."""

    version: str
    poll_seconds: float
    longest_backoff_seconds: float


class Agent:
    """One site's agent. `run` returns when it was told to stop."""

    def __init__(
        self,
        settings: AgentSettings,
        instance: values.AgentInstance,
        connection: Connection,
        renewal: Renewal,
        heartbeat: Heartbeat,
        courier: Courier,
        desk: TaskDesk,
        workplace: Callable[[], Workplace],
        upkeep: Callable[[], None],
        audit: AuditLog,
        metrics: SiteMetrics,
        status: AgentStatus,
        tell: Tell,
        stop: Stop,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._connection = connection
        self._renewal = renewal
        self._heartbeat = heartbeat
        self._courier = courier
        self._desk = desk
        self._workplace = workplace
        self._upkeep = upkeep
        self._audit = audit
        self._metrics = metrics
        self._status = status
        self._tell = tell
        self._stop = stop
        self._now = now
        self._log = get_logger()
        self._backoff = Backoff(settings.longest_backoff_seconds)
        self._connected = False
        self._declined: dict[TaskKey, pb.Task | None] = {}  # None: for good
        self._looked = 0.0

    def run(self) -> None:
        self._status.starting()
        self._heartbeat.start()
        self._metrics.connected.set(0)
        self._metrics.certificate_ends.set(self._renewal.facts.not_after.timestamp())
        try:
            while not self._stop:
                try:
                    self._turn()
                except FedmapError as error:
                    self._trouble(error)
        except Abandoned:
            self._log.info(
                "work_abandoned", study=self._heartbeat.doing.study, task=self._heartbeat.doing.task_id
            )
        finally:
            self._heartbeat.stop()
            self._metrics.connected.set(0)
            self._status.stopped()

    def missing(self) -> str | None:
        """What keeps this agent from working, or None."""
        return None if self._connected else "the aggregator cannot be reached or does not let this site in"

    def _turn(self) -> None:
        workplace = self._workplace()  # fails without a readable policy: nothing below happens then
        if not self._connected:
            self._greet()
        self._renew_if_due()
        self._upkeep()
        self._courier.send()
        task = self._ask(workplace)
        if task is not None:
            self._take(task, self._workplace())  # the policy may have changed during the wait
        self._backoff.reset()
        self._status.well()

    def _greet(self) -> None:
        greeting = self._connection.hello(self._settings.version)
        skew = skew_of(greeting.time_unix_ms, self._now())
        if skew.matters:
            self._log.warning("clock_skew", seconds=round(skew.seconds, 1))
            hint = "Set this machine's clock; a time service (NTP) keeps it right."
            self._tell(Notice(f"this machine's clock is {skew}", hint))
        self._connected = True
        self._metrics.connected.set(1)
        self._log.info("connected", version=greeting.software_version, tier=greeting.tier)
        self._tell(Notice(f"connected to the aggregator, as a T{greeting.tier} site"))
        self._status.well()

    def _renew_if_due(self) -> None:
        if not self._renewal.due(self._now()):
            return
        try:
            facts = self._renewal.renew(self._connection, self._now())
        except (UnreachableError, NotAllowedError):
            raise
        except FedmapError as error:  # the certificate in force still works, and another attempt follows
            self._log.error("certificate_not_renewed", code=error.code)
            self._tell(Notice.of(error, "the certificate could not be renewed"))
            return
        self._metrics.certificate_ends.set(facts.not_after.timestamp())
        self._audit.append("certificate.renewed", facts.serial, {"ends": facts.not_after.isoformat()})
        self._log.info("certificate_renewed", serial=facts.serial, expires=facts.not_after.isoformat())

    def _ask(self, workplace: Workplace) -> pb.Task | None:
        """Wait for the next task, with an eye on the outbox."""
        waiting = self._courier.waiting
        if waiting:
            self._heartbeat.report(waiting[0].study, waiting[0].task_id, "review")
        else:
            self._heartbeat.idle()
        self._forget_what_was_approved_since(workplace)
        declined = [values.TaskInHand(*key) for key in self._declined]
        task = self._connection.next_task(
            self._instance,
            [*self._courier.in_hand(), *declined],
            int(self._settings.poll_seconds),
            self._something_else_to_do,
        )
        return None if task is None else cast(pb.Task, wire.message_of(task))

    def _something_else_to_do(self) -> bool:
        if self._stop:
            return True
        if time.monotonic() - self._looked < REVIEW_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._courier.look_again() or self._renewal.due(self._now())

    def _take(self, task: pb.Task, workplace: Workplace) -> None:
        if (task.study, task.id, task.attempt) in self._declined:  # waits: it could go on without end
            raise StateError(
                f"{task.study}, {task.id} was declined and is offered again",
                hint="Tell the operator: the aggregator and this agent do not fit together.",
            )
        try:
            terms = workplace.approved_terms(task)
        except UnreachableError:
            raise
        except FedmapError as error:
            self._decline(task, error)
            return
        try:
            item = self._desk.do(task, terms, workplace)
        except WithdrawnError as error:
            self._decline(task, error)
            return
        if item.status.state in ("waiting_review", "released", "sent"):
            self._courier.add(item)
            self._courier.show()
        else:  # refused or withdrawn before, and asked for again all the same
            self._declined[task.study, task.id, task.attempt] = None

    def _decline(self, task: pb.Task, error: FedmapError) -> None:
        """Nothing is computed and nothing leaves for a study that this site has not approved as it stands."""
        self._declined[task.study, task.id, task.attempt] = task
        detail = {"terms": task.terms_digest, "code": error.code}
        self._audit.append("task.declined", f"{task.study}.{task.id}.{task.attempt}", detail)
        self._metrics.tasks.labels(kind_of(task), "declined").inc()
        self._log.warning("task_declined", study=task.study, task=task.id, code=error.code)
        self._tell(Notice.of(error, f"{task.study}, {task.id} was declined"))

    def _forget_what_was_approved_since(self, workplace: Workplace) -> None:
        for key, task in list(self._declined.items()):
            if task is not None and workplace.is_approved(task):
                del self._declined[key]

    def _trouble(self, error: FedmapError) -> None:
        self._heartbeat.idle()
        if isinstance(error, (UnreachableError, *SHUT_OUT)):
            self._connected = False
            self._metrics.connected.set(0)
        seconds = self._backoff.next(error)
        ended = isinstance(error, UnreachableError) and self._now() >= self._renewal.facts.not_after
        notice = Notice.of(error)
        if ended:
            notice = Notice(
                f"this site's certificate ended on {self._renewal.facts.not_after:%Y-%m-%d %H:%M} UTC, by "
                f"this machine's clock ({self._now():%Y-%m-%d %H:%M} UTC)",
                "If the clock is right: ask the operator for a new invitation, then run "
                "`fedmap-site enrol --again`.",
            )
        self._log.warning("waiting", code=error.code, seconds=round(seconds, 1))
        self._status.trouble(notice)
        self._tell(notice)
        self._stop.wait(seconds)
