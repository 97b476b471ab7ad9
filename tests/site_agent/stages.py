"""Invented rows, plans and a whole small site for tests of the stages between a file and the outbox."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.pooling.statistics import make_scaler, pool_statistics
from fedmap.algorithm.prior.values import draw_initial_site, initial_parameters, initial_prior
from fedmap.contract.v1.values import GlobalRule, Task, TaskKind
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.scoring.disclosure import released_statistics
from fedmap.study.answers import Content, Work, content_of
from fedmap.study.models import model_of
from fedmap.study.plan.reading import parse_plan
from fedmap.study.site_step import OnProgress, site_step
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms
from fedmap_site.data.loader import DataLoader
from fedmap_site.exit.gate import ExitGate
from fedmap_site.exit.item import OutboxItem
from fedmap_site.exit.outbox import Outbox
from fedmap_site.policy import SitePolicy, floors_of
from fedmap_site.state.audit_log import AuditLog
from fedmap_site.state.studies import SiteState

_Content = TypeVar("_Content", bound=Content)
IDENTIFIER = "NHS-943-476-5919"
"""Planted in every file; it must never come out anywhere."""

BINARY = """
[study]
name = "toy"
title = "A toy study"
[task]
kind = "binary"
label = "sick"
classes = [0, 1]
metric = "auroc"
threshold = { rule = "RULE" }
[data]
patient = "patient"
[[features]]
name = "a"
kind = "number"
range = [-50, 50]
[[features]]
name = "b"
kind = "number"
range = [-50, 50]
[[features]]
name = "smoking"
kind = "category"
categories = ["no", "yes"]
[model]
name = "mlp"
hidden = [8, 4]
dropout = 0.1
batch_norm = true
[training]
epochs = 3
batch_size = 32
learning_rate = 0.01
[prior]
hidden = [8, 4]
[rounds]
count = 4
evaluate_every = 2
[limits]
min_rows = 10
min_events = 2
min_cell = 5
"""
SURVIVAL = (
    BINARY.replace('kind = "binary"', 'kind = "cox"')
    .replace('label = "sick"\nclasses = [0, 1]\nmetric = "auroc"\nthreshold = { rule = "RULE" }',
             'time = "years"\nevent = "sick"\ntime_unit = "years"\nhorizon = 5.0\nmetric = "c_index"')
    .replace('name = "mlp"\nhidden = [8, 4]\ndropout = 0.1\nbatch_norm = true', 'name = "cprd_survival"')
)  # fmt: skip


def terms_of(kind: str = "binary", rule: str = "prevalence", seed: int = 5) -> StudyTerms:
    text = BINARY.replace("RULE", rule) if kind == "binary" else SURVIVAL
    return StudyTerms.of_plan(parse_plan(text, "toy.toml"), seed=seed)


def write_site(path: Path, rows: int, seed: int, share: float = 0.5, smokers: float = 0.3) -> None:
    """Invented rows; every patient number begins with the planted identifier."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.3, 1.0, rows), rng.normal(-0.2, 2.0, rows)
    sick = (rng.random(rows) < share * 2 / (1 + np.exp(-a))).astype(int)
    years = np.clip(rng.exponential(4 * np.exp(-0.5 * a)), 0.01, 5).round(2)
    smoking = np.where(rng.random(rows) < smokers, "yes", "no")
    lines = ["patient,a,b,smoking,sick,years"]
    lines += [
        f"{IDENTIFIER}-{row},{a[row]:.6f},{b[row]:.6f},{smoking[row]},{sick[row]},{years[row]:.2f}"
        for row in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")


@dataclass
class Bench:
    """One site with a file, a state folder and all stages joined, as the agent joins them."""

    folder: Path
    terms: StudyTerms = field(default_factory=terms_of)
    policy: SitePolicy = field(default_factory=lambda: SitePolicy(min_rows=10, min_events=2, min_cell=5))
    site: str = "north"
    rows: int = 300

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        ticks = count(1_700_000_000_000)
        self.clock = lambda: next(ticks)
        self.file = self.folder / f"{self.site}.csv"
        if not self.file.exists():
            write_site(self.file, self.rows, 1)
        self.state = SiteState(self.folder / "state")
        self.state.prepare()
        self.audit = AuditLog(self.state.audit_path, self.clock)
        self.outbox = Outbox(self.state.outbox_folder, self.audit, self.clock)
        self.loader = DataLoader(self.site, self.state, self.policy)
        self.gate = ExitGate(self.site, self.policy, self.outbox, self.clock)

    def dataset(self) -> SiteDataset:
        return self.loader.load(self.terms, self.file)

    def prior(self) -> PriorFile:
        """As the centre would make it before round 1, from this site alone."""
        data, network = self.dataset(), model_of(self.terms.plan).network
        rows = torch.cat([data.train.features, data.validation.features])
        pooled = pool_statistics({self.site: released_statistics(rows, data.layout.scaled, 5).statistics})
        theta = initial_parameters(network, self.terms.seed, draw_initial_site((self.site,), self.terms.seed))
        prior = initial_prior(network, self.terms.plan.prior, theta)
        return PriorFile(prior, make_scaler(pooled, data.layout.scaled))

    def work(
        self,
        request: Task,
        data: SiteDataset | None = None,
        prior: PriorFile | None = None,
        own: OwnModel | None = None,
        on_progress: OnProgress = lambda _stage, _share: None,
    ) -> Work:
        """A task on some rows and from some prior; the site's own where none are given."""
        floor = floors_of(self.terms.plan, self.policy).min_cell
        data, prior = data or self.dataset(), prior or self.prior()
        return site_step(request, self.terms, data, prior, own, floor, on_progress)

    def go(self, request: Task, data: SiteDataset | None = None) -> tuple[OutboxItem, Work]:
        """Do a task on some rows and let it pass the gate."""
        work = self.work(request, data)
        rows = data or self.dataset()
        return self.gate.pass_out(request, self.terms, work, rows, self.prior()), work

    def everything_written(self) -> bytes:
        """All bytes below the state folder: what could ever be read, shown or sent."""
        files = (path for path in sorted(self.state.folder.rglob("*")) if path.is_file())
        return b"\n".join(path.read_bytes() for path in files)


def task(kind: TaskKind, number: int = 0, attempt: int = 1, rule: GlobalRule | None = None) -> Task:
    name = f"round-{number}" if kind == "fit" else kind
    return Task(study="toy", id=name, kind=kind, round=number, attempt=attempt, rule=rule)


def said(source: Work | OutboxItem, kind: type[_Content]) -> _Content:
    """What an answer holds, which is of that kind."""
    content = source.content if isinstance(source, Work) else content_of(source.answer())
    assert isinstance(content, kind)
    return content


def smaller(dataset: SiteDataset, part: str, rows: int) -> SiteDataset:
    """The same site with only the first rows of one part."""
    old = getattr(dataset, part)
    event = None if old.event is None else old.event[:rows]
    cut = replace(old, features=old.features[:rows], target=old.target[:rows], event=event)
    return replace(dataset, **{part: cut})
