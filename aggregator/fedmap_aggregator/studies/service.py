"""The running studies: one lock and one state each, saved before anything is made of a change.

Every change takes the same way: (1) the study's lock; (2) the state machine says what the event leads to;
(3) one transaction stores the new state with all that belongs to it, and the audit entry; (4) memory changes,
and the lock is free again; (5) only then what follows is done: waiting agents are woken, a computation that
is owed is offered to its queue. A failure before (4) leaves the study as it was. Nothing is computed here,
and no event leads to another one in the same call.

What an answer must look like is `gate.intake`; when time passes is `clock`; computations are
`estimation.queue`. No gRPC and no thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from fedmap.algorithm.fit.values import Model
from fedmap.errors import ConflictError, NotFoundError, StorageError
from fedmap.names import shown
from fedmap.process.log import get_logger
from fedmap.study.course.coordinator import advance
from fedmap.study.course.events import (
    Answered,
    Compute,
    Computed,
    ComputeFailed,
    Event,
    Finished,
    Heard,
    Left,
    Resumed,
    Silent,
    Started,
    TaskOpened,
    Tick,
    Transition,
)
from fedmap.study.course.questions import due_compute, next_tick, participants, tasks_for
from fedmap.study.course.state import (
    OpenTask,
    StudyState,
    new_study,
    state_from_json,
    state_to_json,
    without_content,
)
from fedmap.study.models import model_of
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap_aggregator.metrics import AggregatorMetrics
from fedmap_aggregator.store import ResultRow, Store, StudyRow, Transaction
from fedmap_aggregator.studies.file_sites import FileSites
from fedmap_aggregator.studies.liveness import Instance, Liveness
from fedmap_aggregator.studies.polls import Poll, PollBoard
from fedmap_aggregator.studies.records import step_of

Also = Callable[[Transaction], None]
TaskKey = tuple[str, str, int]  # study, task, attempt
_SYSTEM = "aggregator"


@dataclass(frozen=True)
class Study:
    """One study as it stands in the database."""

    terms: StudyTerms
    model: Model = field(repr=False)
    state: StudyState
    version: int


@dataclass(frozen=True)
class Note:
    """What the audit log is told of a change."""

    actor: str
    action: str
    subject: str
    detail: dict[str, str] = field(default_factory=dict)


class StudyService:
    """All studies of this aggregator. Safe to call from any thread."""

    def __init__(
        self,
        store: Store,
        owes: Callable[[str], None],
        liveness: Liveness,
        file_sites: FileSites,
        metrics: AggregatorMetrics,
        clock_ms: Callable[[], int],
        most_polls: int,
    ) -> None:
        """`owes` is told of each study that owes a computation; it must not wait."""
        self._store = store
        self._owes = owes
        self._liveness = liveness
        self._file_sites = file_sites
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._polls = PollBoard(most_polls)
        self._studies: dict[str, Study] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._creating = threading.Lock()
        self._log = get_logger()
        self._on_change: Callable[[], None] = lambda: None

    # Start and end

    def load(self) -> None:
        """Read every study from the database, and take up the computations that a stop interrupted."""
        with self._store.reading() as transaction:
            for row in transaction.studies.list():
                self._add(_study_of(row))
                for result in transaction.results.list(row.name):
                    self._count(result)
        self.compute_due()

    def when_changed(self, call: Callable[[], None]) -> None:
        """`call` runs after every change, in the thread that made it; it must not wait."""
        self._on_change = call

    def stop_polls(self) -> None:
        """No agent waits for a task any longer."""
        self._polls.close()

    # Questions

    def study(self, name: str) -> Study:
        study = self._studies.get(name)
        if study is None:
            raise NotFoundError(
                f"no study is called {shown(name)}", hint="list the studies and check the spelling"
            )
        return study

    def studies(self) -> tuple[Study, ...]:
        """Sorted by name."""
        return tuple(study for _, study in sorted(self._studies.copy().items()))

    def next_task(
        self, site: str, in_hand: Collection[TaskKey], wait_seconds: float, poll: Poll
    ) -> tuple[Study, OpenTask] | None:
        """A task for this site that it has not in hand; waits for one. None: nothing to do yet."""

        def look() -> tuple[Study, OpenTask] | None:
            for study in self.studies():
                task = tasks_for(study.state, site)
                if task is not None and (study.state.study, task.id, task.attempt) not in in_hand:
                    return study, task
            return None

        with self._polls.waiting(poll) as admitted:
            return poll.wait(look, wait_seconds if admitted else 0.0)

    # Changes

    def create(self, terms: StudyTerms, sites: Collection[str], actor: str) -> Study:
        """Put a study up for approval; the same terms and sites again change nothing."""
        plan = terms.plan
        state = new_study(
            terms.study,
            quorum=plan.rounds.quorum,
            rounds=terms.rounds,
            seed=terms.seed,
            deadline_seconds=plan.rounds.deadline_minutes * 60,
            sites=sites,
        )
        with self._creating:
            known = self._studies.get(terms.study)
            if known is not None:
                if known.terms.digest == terms.digest and set(known.state.members) == set(sites):
                    return known
                raise ConflictError(
                    f"a study called {terms.study} exists already, with other terms or other sites",
                    hint="give the new study another name in its plan; approved terms never change",
                )
            model = model_of(plan)
            with self._store.transaction() as transaction:
                row = transaction.studies.insert(
                    terms.study, terms.to_json(), terms.digest, state_to_json(state)
                )
                transaction.audit.append(
                    actor,
                    "study.create",
                    terms.study,
                    {"terms_digest": terms.digest, "sites": str(len(sites))},
                    self._clock_ms(),
                )
            study = Study(terms, model, state, row.version)
            self._add(study)
        self._log.info("study_created", study=terms.study, digest=terms.digest, sites=len(sites))
        self._on_change()
        return study

    def apply(
        self,
        name: str,
        event: Event,
        note: Note | None = None,
        also: Also | None = None,
        unless: Callable[[], bool] = lambda: False,
    ) -> Study:
        """One event, stored together with what `also` writes. Typed errors mean that nothing has changed.

        `unless` is asked while nothing else can change the study; where it holds, nothing happens.
        """
        self.study(name)
        with self._locks[name]:  # (1)
            study = self._studies[name]
            if unless():
                return study
            transition = advance(study.state, event)  # (2)
            changed = transition.state is not study.state
            if not changed and also is None:
                return study
            version = study.version
            with self._store.transaction() as transaction:  # (3)
                if also is not None:
                    also(transaction)
                if changed:
                    version = _save(transaction, transition.state, version)
                if note is not None:
                    transaction.audit.append(note.actor, note.action, note.subject, note.detail, event.at)
            self._studies[name] = replace(study, state=transition.state, version=version)  # (4)
        if changed:
            self._follow(name, event, transition)  # (5)
        return self._studies[name]  # it may have moved on already

    def _follow(self, name: str, event: Event, transition: Transition) -> None:
        """What a stored change leads to."""
        if _brings_nearer(event):
            self._metrics.progressed(name, event.at)
        for decision in transition.decisions:
            match decision:
                case TaskOpened(task):
                    asked = len(task.asked)
                    self._log.info("task_opened", study=name, task=task.id, attempt=task.attempt, sites=asked)
                    self._polls.wake_all()
                case Compute():
                    self._log.info("task_closed", study=name, task=decision.task_id)
                    self._owes(name)
                case Finished():
                    self._log.info("study_over", study=name, phase=decision.phase)
        self._on_change()

    def computed(self, name: str, event: Computed | ComputeFailed, row: ResultRow | None) -> None:
        """The result of a computation that the study owed; StaleError where it does so no longer."""
        detail = {"task": event.task_id}
        if isinstance(event, Computed) and event.prior_digest:
            detail["prior"] = event.prior_digest
        if row is None:
            self.apply(name, event, Note(_SYSTEM, "step.failed", name, detail))
            return
        step = step_of(row)
        if step.absent:
            detail["by_earlier_update"] = ", ".join(step.absent)
        note = Note(_SYSTEM, "step.computed", name, detail)
        self.apply(name, event, note, lambda transaction: transaction.results.put(row))
        if step.summary is not None:
            self._metrics.round_completed(name)
        self._count(row)

    def forget_content(self, name: str, now: int, also: Also) -> Study:
        """An ended study keeps its record only; stored together with what `also` writes."""
        self.study(name)
        with self._locks[name]:
            study = self._studies[name]
            state = without_content(study.state, now)
            with self._store.transaction() as transaction:
                also(transaction)
                version = _save(transaction, state, study.version)
            after = self._studies[name] = replace(study, state=state, version=version)
            self._metrics.forget(name)
        self._on_change()
        return after

    def leave_all(self, site: str, reason: str) -> None:
        """A site that is shut out leaves every study; the others go on."""
        for study in self.studies():
            member = study.state.members.get(site)
            if member is not None and member.membership in ("invited", "approved") and not study.state.over:
                note = Note(_SYSTEM, "study.leave", study.state.study, {"site": site, "reason": reason})
                self.apply(study.state.study, Left(self._clock_ms(), site, reason), note)

    def heard(self, site: str, instance: Instance | None) -> None:
        """A sign of life over the network. ConflictError when another agent uses the identity."""
        now = self._clock_ms()
        self._liveness.heard(site, instance, now)
        self._file_sites.discard(site)
        self._back(site, now)

    def heard_by_file(self, site: str) -> None:
        """The site takes part by files: its silence says nothing."""
        self._file_sites.add(site)
        self._back(site, self._clock_ms())

    # What the clock drives

    def pass_time(self, now: int) -> int | None:
        """Deadlines and silences that are due. Returns when the next one is (unix ms), if any is known."""
        due: list[int] = []
        for study in self.studies():
            if study.state.over:
                continue
            name, task = study.state.study, study.state.task
            if task is not None and task.deadline_at <= now:
                self.apply(name, Tick(now))
            for site in participants(study.state):
                if site in self._file_sites or site in study.state.silent:
                    continue
                if self._liveness.is_silent(site, now):
                    self._log.warning("site_silent", study=name, site=site)
                    self.apply(name, Silent(now, site))
                else:
                    due.append(self._liveness.silent_at(site))
            tick = next_tick(self.study(name).state, now)
            if tick is not None:
                due.append(tick)
        return min(due, default=None)

    def compute_due(self) -> None:
        """Computations that are owed: also after a start, or after one that failed for a while."""
        for study in self.studies():
            if due_compute(study.state) is not None:
                self._owes(study.state.study)

    # Inner workings

    def _add(self, study: Study) -> None:
        self._locks[study.state.study] = threading.Lock()
        self._studies[study.state.study] = study

    def _back(self, site: str, now: int) -> None:
        for study in self.studies():
            if site in study.state.silent and not study.state.over:
                self._log.info("site_back", study=study.state.study, site=site)
                self.apply(study.state.study, Heard(now, site))

    def _count(self, result: ResultRow) -> None:
        """What the metrics say of a closed step; called in the order of the steps."""
        self._metrics.progressed(result.study, result.closed_at)
        summary = step_of(result).summary
        if summary is not None:
            self._metrics.round_closed(result.study, summary)


def _brings_nearer(event: Event) -> bool:
    """Whether an event that changed something is progress, as the operator's alerts mean it."""
    if isinstance(event, Answered):
        return event.status in ("accepted", "abstained")
    return isinstance(event, (Started, Resumed, Computed))


def _save(transaction: Transaction, state: StudyState, version: int) -> int:
    """A lost save is nobody's conflict but ours: whoever called tries again, and the operator is told."""
    try:
        return transaction.studies.save(state.study, state_to_json(state), version)
    except ConflictError as error:
        raise StorageError(
            f"another program has changed the study {state.study} in the database",
            hint="look for a second aggregator on the same database, stop it, and restart this one",
        ) from error


def _study_of(row: StudyRow) -> Study:
    terms = parse_terms(row.terms_json, row.name)
    return Study(terms, model_of(terms.plan), state_from_json(row.state_json), row.version)
