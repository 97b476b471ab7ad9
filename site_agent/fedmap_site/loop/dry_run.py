"""A rehearsal: every kind of answer that a study asks for, made from this site's own rows, and nothing sent.

The same door, the same training and the same exit gate as in a real round, in a folder of its own. The centre
is played here, with this site as the only one: its own statistics make the scaler, its own first model the
first prior. What would leave lies then in the folder, each answer with its manifest. Steps: (1) statistics,
(2) first model, (3) the first round, and the last where the first is a consensus round: only rounds under the
prior give the model that is scored, (4) the decision rule, (5) evaluation. Approvals, models and outbox of
the real study are not touched, and no connection is made: nothing in here could make one.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedmap.contract.v1.values import FitAnswer, RuleAnswer, StatisticsAnswer, Task, TaskKind
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import TrainingError
from fedmap.files.durable import make_folder, storage_errors
from fedmap.study.answers import content_as, terms_of, told_rule
from fedmap.study.centre_step import CentreStep
from fedmap.study.tensors.parameter_files import PriorFile, decode_parameters, decode_statistics, decode_theta
from fedmap.study.terms import StudyTerms
from fedmap_site.config import DataSection
from fedmap_site.exit.item import MANIFEST_TEXT, OutboxItem
from fedmap_site.exit.outbox import Outbox
from fedmap_site.loop.workplace import Workplace
from fedmap_site.policy import SitePolicy
from fedmap_site.state.audit_log import AuditLog, Clock
from fedmap_site.state.studies import SiteState

FOLDER = "dry-run"
_BACKSTAGE = ".backstage"
_FLOORS = "the site's floors are not reached"
OnTask = Callable[[str], None]


@dataclass(frozen=True)
class Rehearsed:
    """One answer as it would leave."""

    item: OutboxItem
    seconds: float

    @property
    def manifest_path(self) -> Path:
        """For people."""
        return self.item.folder / MANIFEST_TEXT


@dataclass(frozen=True)
class DryRun:
    """What a study would ask of this site, and what that took on this machine."""

    folder: Path
    rounds: int
    load_seconds: float
    answers: tuple[Rehearsed, ...]
    peak_bytes: int
    """The most memory that this process has had at any time."""

    @property
    def fit(self) -> Rehearsed:
        """The answer of a round, which a study asks for again and again; of two kinds the longer one."""
        fits = [one for one in self.answers if one.item.content == "fit"]
        return max(fits, key=lambda one: one.seconds)


def rehearse(
    site: str,
    real: SiteState,
    study: str,
    data: DataSection,
    policy: SitePolicy,
    clock: Clock,
    on_task: OnTask = lambda _: None,
) -> DryRun:
    """Do an approved study once, in `studies/STUDY/dry-run`; what an earlier rehearsal left is removed."""
    terms = real.terms(study)
    folder = real.study_folder(study) / FOLDER
    backstage = SiteState(folder / _BACKSTAGE)
    _clear(folder)
    make_folder(backstage.folder)
    try:
        backstage.prepare()
        backstage.approve(terms, "dry run", clock(), policy.digest)
        record = real.data_record(study)
        if record is not None:  # a file that changed in mid-study is refused here too
            backstage.remember_data(study, record)
        outbox = Outbox(folder, AuditLog(backstage.audit_path, clock), clock)
        stage = _Stage(terms, Workplace(site, backstage, outbox, data, policy, clock), on_task)
        return stage.play(folder)
    finally:
        _clear(backstage.folder)


def _clear(folder: Path) -> None:
    with storage_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)


class _Stage:
    """One rehearsal; used once."""

    def __init__(self, terms: StudyTerms, workplace: Workplace, on_task: OnTask) -> None:
        self._terms = terms
        self._centre = CentreStep.of(terms)
        self._workplace = workplace
        self._on_task = on_task
        self._answers: list[Rehearsed] = []

    def play(self, folder: Path) -> DryRun:
        self._on_task("loading")
        began = time.monotonic()
        dataset = self._workplace.load(self._terms)
        loaded = time.monotonic() - began
        network, site = self._centre.model.network, dataset.site
        item = self._do(self._task("statistics"), dataset, None)  # (1)
        told = content_as(StatisticsAnswer, item.answer())
        sent = decode_statistics(_tensors(item), told.rows, network.inputs)
        scaler = self._centre.pool({site: told.layout_digest}, lambda _: sent).scaler
        item = self._do(self._task("initialise"), dataset, None)  # (2)
        prior = self._centre.first(decode_theta(network, _tensors(item)), scaler)
        prior = self._round(1, dataset, prior)  # (3)
        if self._centre.carries_over(1):
            prior = self._round(self._terms.rounds, dataset, prior)
        item = self._do(self._task("rule"), dataset, prior)  # (4)
        terms, _ = terms_of(self._terms.plan, content_as(RuleAnswer, item.answer()), item.tensors_path)
        rule = told_rule(self._centre.rule({site: terms}, {}, ()).rule)
        self._do(replace(self._task("evaluate"), rule=rule), dataset, prior)  # (5)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return DryRun(folder, self._terms.rounds, loaded, tuple(self._answers), peak)

    def _round(self, number: int, dataset: SiteDataset, before: PriorFile) -> PriorFile:
        """The site's half and the centre's."""
        item = self._do(self._task("fit", number), dataset, before)
        update = decode_parameters(self._centre.model.network, _tensors(item))
        weight = content_as(FitAnswer, item.answer()).log_omega or 0.0
        step = self._centre.next(number, before.prior, {dataset.site: weight}, lambda _: update)
        return PriorFile(step.prior, before.scaler)

    def _task(self, kind: TaskKind, number: int = 0) -> Task:
        name = f"round-{number}" if number else kind
        # The first attempt, as the centre counts.
        return Task(self._terms.study, name, kind, number, self._terms.digest, attempt=1)

    def _do(self, task: Task, dataset: SiteDataset, prior: PriorFile | None) -> OutboxItem:
        """One task from the rows to the folder; a failure of the work ends the rehearsal with its reason."""
        self._on_task(task.id)
        began = time.monotonic()
        work = self._workplace.work(task, self._terms, dataset, prior)
        item = self._workplace.keep(task, self._terms, work, dataset, prior)
        if item.content == "failure":
            raise TrainingError(
                f"{task.id} would fail: {work.error or _FLOORS}",
                hint="Mend it before the study starts; the centre would hear only that this site failed.",
            )
        self._answers.append(Rehearsed(item, time.monotonic() - began))
        return item


def _tensors(item: OutboxItem) -> Path:
    """The file of an answer that always has one."""
    if item.tensors_path is None:
        raise TrainingError(
            f"{item.id} holds no parameters, so the rehearsal cannot go on",
            hint="Read its manifest: what was withheld, and why.",
        )
    return item.tensors_path
