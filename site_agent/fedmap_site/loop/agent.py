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

from fedmap.contract.v1.values import AgentInstance, Task, TaskInHand
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
from fedmap_site.config import AgentSection
from fedmap_site.identity.enrolment import Renewal
from fedmap_site.link.connection import Connection, skew_of
from fedmap_site.loop.courier import Courier
from fedmap_site.loop.heartbeat import Heartbeat
from fedmap_site.loop.network_tasks import NetworkTasks
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


@dataclass
class Agent:
    """One site's agent. `run` returns when it was told to stop."""

    version: str
    timing: AgentSection
    instance: AgentInstance
    connection: Connection
    renewal: Renewal
    heartbeat: Heartbeat
    courier: Courier
    tasks: NetworkTasks
    workplace: Callable[[], Workplace]
    upkeep: Callable[[], None]
    audit: AuditLog
    metrics: SiteMetrics
    status: AgentStatus
    tell: Tell
    stop: Stop
    now: Callable[[], datetime.datetime]

    def __post_init__(self) -> None:
        self._log = get_logger()
        self._backoff = Backoff(self.timing.longest_backoff_seconds)
        self._connected = False
        self._declined: dict[TaskKey, Task | None] = {}  # None: for good
        self._looked = 0.0

    def run(self) -> None:
        self.status.starting()
        self.heartbeat.start()
        self.metrics.connected.set(0)
        self.metrics.certificate_ends.set(self.renewal.facts.not_after.timestamp())
        try:
            while not self.stop:
                try:
                    self._turn()
                except FedmapError as error:
                    self._trouble(error)
        except Abandoned:
            self._log.info(
                "work_abandoned", study=self.heartbeat.doing.study, task=self.heartbeat.doing.task_id
            )
        finally:
            self.heartbeat.stop()
            self.metrics.connected.set(0)
            self.status.stopped()

    def missing(self) -> str | None:
        """What keeps this agent from working, or None."""
        return None if self._connected else "the aggregator cannot be reached or does not let this site in"

    def _turn(self) -> None:
        workplace = self.workplace()  # fails without a readable policy: nothing below happens then
        if not self._connected:
            self._greet()
        self._renew_if_due()
        self.upkeep()
        self.courier.send()
        task = self._ask(workplace)
        if task is not None:
            self._take(task, self.workplace())  # the policy may have changed during the wait
        self._backoff.reset()
        self.status.well()

    def _greet(self) -> None:
        greeting = self.connection.hello(self.version)
        skew = skew_of(greeting.time_unix_ms, self.now())
        if skew.matters:
            self._log.warning("clock_skew", seconds=round(skew.seconds, 1))
            hint = "Set this machine's clock; a time service (NTP) keeps it right."
            self.tell(Notice(f"this machine's clock is {skew}", hint))
        self._connected = True
        self.metrics.connected.set(1)
        self._log.info("connected", version=greeting.software_version, tier=greeting.tier)
        self.tell(Notice(f"connected to the aggregator, as a T{greeting.tier} site"))
        self.status.well()

    def _renew_if_due(self) -> None:
        if not self.renewal.due(self.now()):
            return
        try:
            facts = self.renewal.renew(self.connection, self.now())
        except (UnreachableError, NotAllowedError):
            raise
        except FedmapError as error:  # the certificate in force still works, and another attempt follows
            self._log.error("certificate_not_renewed", code=error.code)
            self.tell(Notice.of(error, "the certificate could not be renewed"))
            return
        self.metrics.certificate_ends.set(facts.not_after.timestamp())
        self.audit.append("certificate.renewed", facts.serial, {"ends": facts.not_after.isoformat()})
        self._log.info("certificate_renewed", serial=facts.serial, expires=facts.not_after.isoformat())

    def _ask(self, workplace: Workplace) -> Task | None:
        """Wait for the next task, with an eye on the outbox."""
        waiting = self.courier.waiting
        if waiting:
            self.heartbeat.report(waiting[0].study, waiting[0].task_id, "review")
        else:
            self.heartbeat.idle()
        self._forget_what_was_approved_since(workplace)
        declined = [TaskInHand(*key) for key in self._declined]
        return self.connection.next_task(
            self.instance,
            [*self.courier.in_hand(), *declined],
            int(self.timing.poll_seconds),
            self._something_else_to_do,
        )

    def _something_else_to_do(self) -> bool:
        if self.stop:
            return True
        if time.monotonic() - self._looked < REVIEW_SECONDS:
            return False
        self._looked = time.monotonic()
        return self.courier.look_again() or self.renewal.due(self.now())

    def _take(self, task: Task, workplace: Workplace) -> None:
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
            item = self.tasks.do(task, terms, workplace)
        except WithdrawnError as error:
            self._decline(task, error)
            return
        if item.status.state in ("waiting_review", "released", "sent"):
            self.courier.add(item)
            self.courier.show()
        else:  # refused or withdrawn before, and asked for again all the same
            self._declined[task.study, task.id, task.attempt] = None

    def _decline(self, task: Task, error: FedmapError) -> None:
        """Nothing is computed and nothing leaves for a study that this site has not approved as it stands."""
        self._declined[task.study, task.id, task.attempt] = task
        detail = {"terms": task.terms_digest, "code": error.code}
        self.audit.append("task.declined", f"{task.study}.{task.id}.{task.attempt}", detail)
        self.metrics.tasks.labels(task.kind, "declined").inc()
        self._log.warning("task_declined", study=task.study, task=task.id, code=error.code)
        self.tell(Notice.of(error, f"{task.study}, {task.id} was declined"))

    def _forget_what_was_approved_since(self, workplace: Workplace) -> None:
        for key, task in list(self._declined.items()):
            if task is not None and workplace.is_approved(task):
                del self._declined[key]

    def _trouble(self, error: FedmapError) -> None:
        self.heartbeat.idle()
        if isinstance(error, (UnreachableError, *SHUT_OUT)):
            self._connected = False
            self.metrics.connected.set(0)
        seconds = self._backoff.next(error)
        ended = isinstance(error, UnreachableError) and self.now() >= self.renewal.facts.not_after
        notice = Notice.of(error)
        if ended:
            notice = Notice(
                f"this site's certificate ended on {self.renewal.facts.not_after:%Y-%m-%d %H:%M} UTC, by "
                f"this machine's clock ({self.now():%Y-%m-%d %H:%M} UTC)",
                "If the clock is right: ask the operator for a new invitation, then run "
                "`fedmap-site enrol --again`.",
            )
        self._log.warning("waiting", code=error.code, seconds=round(seconds, 1))
        self.status.trouble(notice)
        self.tell(notice)
        self.stop.wait(seconds)
