"""Does one task from its prior to the outbox.

(1) what the outbox has already is not computed again; (2) the prior is fetched and checked; (3) the data go
through the door, the work is done; (4) the own model is kept, and the exit gate puts what may leave into the
outbox. What cannot be done leaves as a failure, through the same gate; the reason in full is told here alone.
Whether the site takes part at all is asked before (`workplace`); sending comes after (`courier`).
"""

from __future__ import annotations

from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.errors import (
    FedmapError,
    IntegrityError,
    StorageError,
    TrainingError,
    UnreachableError,
    WithdrawnError,
)
from fedmap.files.digests import is_digest
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.terms import StudyTerms
from fedmap_site.exit.item import OutboxItem
from fedmap_site.link.connection import Connection
from fedmap_site.loop.heartbeat import Heartbeat
from fedmap_site.loop.notices import Notice, Tell
from fedmap_site.loop.stopping import Stop
from fedmap_site.loop.workplace import Workplace
from fedmap_site.metrics import SiteMetrics
from fedmap_site.state.studies import SiteState
from fedmap_site.work.failures import UNEXPECTED


def kind_of(task: pb.Task) -> str:
    """The kind of a task in a word, for logs and metrics."""
    return pb.TaskKind.Name(task.kind).removeprefix("TASK_KIND_").lower()


class TaskDesk:
    """Tasks as they come from the aggregator, one at a time."""

    def __init__(
        self,
        state: SiteState,
        connection: Connection,
        heartbeat: Heartbeat,
        metrics: SiteMetrics,
        tell: Tell,
        stop: Stop,
    ) -> None:
        self._state = state
        self._connection = connection
        self._heartbeat = heartbeat
        self._metrics = metrics
        self._tell = tell
        self._stop = stop
        self._log = get_logger()

    def do(self, task: pb.Task, terms: StudyTerms, workplace: Workplace) -> OutboxItem:
        """The answer in the outbox. What the network or the disk refuses is raised: it can be tried again."""
        found = workplace.answered(task)  # (1)
        if found is not None:
            return found
        kind = kind_of(task)
        self._log.info("task_begun", study=task.study, task=task.id, kind=kind, attempt=task.attempt)
        self._heartbeat.report(task.study, task.id, "loading")
        with self._metrics.timed("fetch"), self._stop.abandonable():
            self._fetch(task)  # (2)
        try:
            item = self._answer(task, terms, workplace)
        except (UnreachableError, StorageError):
            raise  # it may be better in a while, and then the answer is still wanted
        except WithdrawnError:
            raise  # not even a failure is told of a study that the site has left
        except FedmapError as error:
            item = self._failed(task, terms, workplace, error)
        except UNEXPECTED as error:
            self._log.error("task_failed_unexpectedly", study=task.study, task=task.id, exc_info=error)
            failure = TrainingError(
                f"the task {task.id} failed in an unexpected way ({type(error).__name__})",
                hint="Report it with the log's line; the study goes on without this answer.",
            )
            item = self._failed(task, terms, workplace, failure)
        outcome = "failed" if item.content == "failure" else "answered"
        self._metrics.tasks.labels(kind, outcome).inc()
        self._log.info("task_done", study=task.study, task=task.id, kind=kind, status=item.status.state)
        if item.status.state == "waiting_review":
            hint = f"`fedmap-site outbox show {item.id}`, then `release` or `reject` it with --approver NAME."
            self._tell(Notice(f"{item.id} waits in the outbox for a person's release", hint))
        return item

    def _fetch(self, task: pb.Task) -> None:
        if not task.prior_digest:
            return
        if not is_digest(task.prior_digest):
            raise IntegrityError(
                f"the task {task.id} names its prior by something that is not a digest",
                hint="Tell the operator: the aggregator and this agent do not fit together.",
            )
        folder = self._state.prior_path(task.study, task.prior_digest).parent
        self._connection.fetch_prior(task.study, task.prior_digest, task.prior_size, folder)
        self._state.keep_only_prior(task.study, task.prior_digest)

    def _answer(self, task: pb.Task, terms: StudyTerms, workplace: Workplace) -> OutboxItem:
        with self._metrics.timed("work"), self._stop.abandonable():  # (3)
            dataset = workplace.load(terms)
            prior = workplace.read_prior(task, terms)
            work = workplace.work(task, terms, dataset, prior, self._heartbeat)
        if task.kind == pb.TASK_KIND_FIT:
            reach("agent.trained")
        if work.local_reason:
            self._log.warning("task_failed", study=task.study, task=task.id)
            self._tell(Notice(f"{task.study}, {task.id}: {work.local_reason}"))
        with self._metrics.timed("egress"):
            return workplace.keep(task, terms, work, dataset, prior)  # (4)

    def _failed(
        self, task: pb.Task, terms: StudyTerms, workplace: Workplace, error: FedmapError
    ) -> OutboxItem:
        self._log.warning("task_failed", study=task.study, task=task.id, code=error.code)
        self._tell(Notice.of(error, f"{task.study}, {task.id}"))
        return workplace.fail(task, terms, error)
