"""Does tasks that come over the network: fetches the prior, shows progress, tells how a task ended.

What the outbox has already is not computed again. Whether the site takes part at all is asked before, and
what is done with the rows is `workplace`'s; sending comes after (`courier`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from fedmap.contract.v1.values import Task
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.site_step import Stage
from fedmap.study.terms import StudyTerms
from fedmap_site.exit.item import OutboxItem
from fedmap_site.link.connection import Connection
from fedmap_site.loop.heartbeat import Heartbeat
from fedmap_site.loop.notices import Notice, Tell
from fedmap_site.loop.stopping import Stop
from fedmap_site.loop.workplace import Workplace
from fedmap_site.metrics import SiteMetrics
from fedmap_site.state.studies import SiteState


@dataclass(frozen=True)
class NetworkTasks:
    """Tasks as they come from the aggregator, one at a time."""

    state: SiteState
    connection: Connection
    heartbeat: Heartbeat
    metrics: SiteMetrics
    tell: Tell
    stop: Stop

    def do(self, task: Task, terms: StudyTerms, workplace: Workplace) -> OutboxItem:
        """The answer in the outbox. What the network or the disk refuses is raised: it can be tried again."""
        found = workplace.answered(task)
        if found is not None:
            return found
        log = get_logger()
        log.info("task_begun", study=task.study, task=task.id, kind=task.kind, attempt=task.attempt)
        self.heartbeat.report(task.study, task.id, "loading")
        with self._stretch("fetch"):
            self._fetch(task)

        def on_progress(stage: Stage, share: float) -> None:
            self.heartbeat.report(task.study, task.id, stage, share)
            if task.kind == "fit" and stage == "training" and share > 0:
                reach("agent.training")

        item, failure = workplace.do(task, terms, on_progress, self._stretch)
        if failure is not None:
            log.warning("task_failed", study=task.study, task=task.id, code=failure.code)
            self.tell(Notice.of(failure, f"{task.study}, {task.id}"))
        outcome = "failed" if item.content == "failure" else "answered"
        self.metrics.tasks.labels(task.kind, outcome).inc()
        log.info("task_done", study=task.study, task=task.id, kind=task.kind, status=item.status.state)
        if item.status.state == "waiting_review":
            hint = f"`fedmap-site outbox show {item.id}`, then `release` or `reject` it with --approver NAME."
            self.tell(Notice(f"{item.id} waits in the outbox for a person's release", hint))
        return item

    @contextmanager
    def _stretch(self, stage: str) -> Iterator[None]:
        """Its time is counted; a stop ends it on the spot, but not while files change hands."""
        with self.metrics.timed(stage), nullcontext() if stage == "egress" else self.stop.abandonable():
            yield

    def _fetch(self, task: Task) -> None:
        if not task.prior_digest:
            return
        folder = self.state.priors_folder(task.study)
        self.connection.fetch_prior(task.study, task.prior_digest, task.prior_size, folder)
        self.state.keep_only_prior(task.study, task.prior_digest)
