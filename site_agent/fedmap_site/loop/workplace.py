"""Where tasks are done under one policy: from the door, past the work itself, to the exit gate.

Shared by the agent on the network, by rounds that travel as files and by the dry run. Nothing here dials out,
and nothing is done for a study whose exact terms this site has not approved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from fedmap.contract.v1.values import Task
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import (
    FedmapError,
    NotFoundError,
    RejectedError,
    StorageError,
    TrainingError,
    WithdrawnError,
)
from fedmap.names import shown
from fedmap.process.fault_points import reach
from fedmap.process.log import get_logger
from fedmap.study.answers import Work
from fedmap.study.failures import UNEXPECTED
from fedmap.study.models import model_of
from fedmap.study.site_step import OnProgress, is_step, site_step
from fedmap.study.tensors.parameter_files import PriorFile, decode_prior, most_prior_bytes
from fedmap.study.terms import StudyTerms
from fedmap_site.config import DataSection
from fedmap_site.data.loader import DataLoader
from fedmap_site.exit.gate import ExitGate
from fedmap_site.exit.item import OutboxItem
from fedmap_site.exit.outbox import Outbox
from fedmap_site.policy import SitePolicy, floors_of
from fedmap_site.state.audit_log import Clock
from fedmap_site.state.studies import Approval, SiteState

MOST_ANSWERS = 3
"""To one task that may leave. Each attempt is blurred anew: the mean of many would show what noise hides."""
Stretch = Callable[[str], AbstractContextManager[None]]
"""What surrounds a stage of a task: "work", then "egress"."""


class Workplace:
    """One policy in force, with everything that a task needs on this machine."""

    def __init__(
        self, site: str, state: SiteState, outbox: Outbox, data: DataSection, policy: SitePolicy, clock: Clock
    ) -> None:
        self.policy = policy
        self._state = state
        self._outbox = outbox
        self._data = data
        self._approved: dict[str, tuple[Approval, StudyTerms]] = {}
        self._loader = DataLoader(site, state, policy)
        self._gate = ExitGate(site, policy, outbox, clock)

    def approved_terms(self, task: Task) -> StudyTerms:
        """The terms that this site has agreed to, if the task is of exactly those; else `NotFoundError`."""
        terms = self._terms(task.study)
        if terms.digest != task.terms_digest:
            raise NotFoundError(
                f"the task {task.id} of {task.study} is not under the terms that this site approved",
                hint="See `fedmap-site studies`; leave the study and approve it again if its terms changed.",
            )
        if not is_step(task, terms.rounds):
            raise RejectedError(
                f"the task {shown(task.id)} of {task.study} is no step of the terms that this site approved",
                hint="Tell the operator: the approved terms say which tasks there are, and how many rounds.",
            )
        if task.prior_size > most_prior_bytes(model_of(terms.plan).network, terms.plan.prior):
            raise RejectedError(
                f"the prior of {shown(task.id)} of {task.study} is larger than the plan's model can have",
                hint="Tell the operator. Nothing was fetched: it would have filled the disk.",
            )
        return terms

    def _terms(self, study: str) -> StudyTerms:
        """As approved; read and checked again whenever the approval is another one."""
        approval = self._state.approval(study)
        kept = self._approved.get(study)
        if kept is not None and approval is not None and kept[0] == approval:
            return kept[1]
        terms = self._state.terms(study)
        if approval is not None:
            self._approved[study] = (approval, terms)
        return terms

    def is_approved(self, task: Task) -> bool:
        try:
            self.approved_terms(task)
        except FedmapError:  # whatever it is, it was told when the task was declined
            return False
        return True

    def answered(self, task: Task) -> OutboxItem | None:
        """The answer that stands for a task. What the centre has had is not made for it once more."""
        found = self._outbox.find(task.study, task.id, task.attempt)
        if found is not None:
            return found
        earlier = [
            item
            for item in self._outbox.answers_to(task.study, task.id, task.attempt)
            if item.content != "failure" and item.status.state in ("released", "sent", "refused", "withdrawn")
        ]
        sent = [item for item in earlier if item.status.state == "sent"]
        if sent:
            return sent[-1]
        return earlier[-1] if len(earlier) >= MOST_ANSWERS else None

    def do(
        self,
        task: Task,
        terms: StudyTerms,
        on_progress: OnProgress = lambda _stage, _share: None,
        stretch: Stretch = lambda _: nullcontext(),
    ) -> tuple[OutboxItem, FedmapError | None]:
        """A task from the rows to the outbox, and why its answer is a failure if it is one.

        (1) The data go through the door, the prior is read, the work is done; (2) the own model is kept and
        the exit gate puts what may leave into the outbox. What cannot be done leaves as a failure, through
        the same gate. What the disk refuses is raised: it may be better in a while, and then the answer is
        still wanted. So is that the site has left the study: of that not even a failure is told.
        """
        try:
            with stretch("work"):  # (1)
                dataset, prior = self.load(terms), self._prior(task, terms)
                work = self.work(task, terms, dataset, prior, on_progress)
            if task.kind == "fit":
                reach("agent.trained")
            with stretch("egress"):  # (2)
                return self.keep(task, terms, work, dataset, prior), work.error
        except (StorageError, WithdrawnError):
            raise
        except FedmapError as error:
            failure = error
        except UNEXPECTED as error:
            get_logger().error("task_failed_unexpectedly", study=task.study, task=task.id, exc_info=error)
            failure = TrainingError(
                f"the task {task.id} failed in an unexpected way ({type(error).__name__})",
                hint="Report it with the log's line; the study goes on without this answer.",
            )
        with self._still_in(task, terms):
            return self._gate.fail(task, terms, failure), failure

    def load(self, terms: StudyTerms) -> SiteDataset:
        return self._loader.load(terms, self._data.path_of(terms.study))

    def work(
        self,
        task: Task,
        terms: StudyTerms,
        dataset: SiteDataset,
        prior: PriorFile | None,
        on_progress: OnProgress = lambda _stage, _share: None,
    ) -> Work:
        before = task.round if task.kind == "fit" else None
        network, floor = model_of(terms.plan).network, floors_of(terms.plan, self.policy).min_cell
        own = self._state.newest_model(
            task.study, network, before, lambda number: self._kept_back(terms, number)
        )
        return site_step(task, terms, dataset, prior, own, floor, on_progress)

    def keep(
        self, task: Task, terms: StudyTerms, work: Work, dataset: SiteDataset, prior: PriorFile | None
    ) -> OutboxItem:
        """The model first: whoever finds the answer in the outbox can rely on the model behind it."""
        with self._still_in(task, terms):
            if work.model is not None:
                self._state.save_model(task.study, task.round, model_of(terms.plan).network, work.model)
            return self._gate.pass_out(task, terms, work, dataset, prior)

    def _prior(self, task: Task, terms: StudyTerms) -> PriorFile | None:
        """The prior that was fetched for a task; None where the task has none."""
        if not task.prior_digest:
            return None
        path = self._state.prior_path(task.study, task.prior_digest)
        return decode_prior(model_of(terms.plan).network, terms.plan.prior, path)

    def _kept_back(self, terms: StudyTerms, number: int) -> bool:
        """A consensus round whose answer was rejected: what it added to u_k must not leave later."""
        consensus = terms.plan.settings.is_consensus(number, terms.rounds)
        return consensus and self._outbox.was_rejected(terms.study, f"round-{number}")

    @contextmanager
    def _still_in(self, task: Task, terms: StudyTerms) -> Iterator[None]:
        """Work takes long, and the site may have left the study meanwhile, or purged it."""
        with self._state.studies_lock():
            approval = self._state.approval(task.study)
            if approval is None:
                self._state.delete_study(task.study)  # a prior or record that was written after the purge
            if approval is None or approval.left or approval.terms_digest != terms.digest:
                raise WithdrawnError(
                    f"this site left {task.study} while {task.id} was done; the work is dropped",
                    hint="There is nothing to do: nothing of it was kept, and nothing of it leaves.",
                )
            yield
