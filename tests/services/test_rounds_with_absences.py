"""A centre and its sites with no network between them: whoever is missing, the models are the simulator's.

The centre decides by its clock and its store who counts with what; the sites keep their models on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.contract.v1 import values
from fedmap.study.engine import LoopEngine
from fedmap.study.models import model_of
from fedmap.study.plan.reading import parse_plan
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.tensors.parameter_files import decode_prior
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.studies.records import step_of
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.method import Run, Trained
from fedmap_site.config import DataSection
from fedmap_site.exit.outbox import Outbox
from fedmap_site.loop.workplace import Workplace
from fedmap_site.policy import SitePolicy
from fedmap_site.state.audit_log import AuditLog
from fedmap_site.state.studies import SiteState
from tests.aggregator.centre import OPERATOR, Centre, Site, centre_in
from tests.aggregator.small_study import Small
from tests.site_agent.stages import BINARY, SURVIVAL, write_site

ROUNDS, SEED = 7, 5  # rounds 1 to 5 are consensus rounds
ROWS = {"east": 260, "north": 300, "west": 220}
MISSED = {"east": (6, 7), "north": (2, 3), "west": (1, 5)}
"""One has nothing to count with when it is missing, one is missing twice in a row, one at the end."""
POLICY = SitePolicy(egress="automatic", min_rows=10, min_events=2, min_cell=5)
TRAINING_TASKS = ("statistics", "initialise", "fit")


class Unreliable(LoopEngine):
    """The simulator's sites fail in the rounds that they are to miss."""

    def __init__(self) -> None:
        super().__init__()
        self._round = 0

    def fit(
        self,
        model: Model,
        settings: FedmapSettings,
        prior: Prior,
        tasks: Sequence[SiteTask],
        penalised: bool = True,
        rule: LocalRule | None = None,
    ) -> list[LocalFit | FailedFit]:
        self._round += 1
        fits = super().fit(model, settings, prior, tasks, penalised, rule)
        pairs = zip(sorted(ROWS), fits, strict=True)
        return [FailedFit("absent") if self._round in MISSED[site] else fit for site, fit in pairs]


@dataclass(frozen=True)
class Hospital:
    """A site's own machine, and its line to the centre."""

    line: Site
    state: SiteState
    work: Workplace

    @property
    def name(self) -> str:
        return self.line.name

    def join(self, study: Small) -> None:
        self.state.approve(study.terms, "Data protection", self.line.centre.clock(), POLICY.digest)
        self.line.approve(study)

    def do(self, task: values.Task, terms: StudyTerms) -> None:
        """Work and answer, unless this is a round to miss."""
        if task.round in MISSED[self.name]:
            return
        network, prior = model_of(terms.plan).network, None
        if task.prior_digest:
            file = self.line.centre.store.blobs.existing(task.prior_digest)
            prior = decode_prior(network, terms.plan.prior, file)
        rows = self.work.load(terms)
        item = self.work.keep(task, terms, self.work.work(task, terms, rows, prior), rows, prior)
        self.line.submit(item.answer(), b"" if item.tensors_path is None else item.tensors_path.read_bytes())


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    with centre_in(tmp_path) as made_here:
        yield made_here


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"
    folder.mkdir()
    (folder / "sites.csv").write_text("\n".join(["site,tier,region", *(f"{site},1," for site in ROWS), ""]))
    for number, (site, rows) in enumerate(ROWS.items()):
        write_site(folder / f"{site}.csv", rows, number)
    return folder


@pytest.fixture
def hospitals(centre: Centre, cohort: Path, tmp_path: Path) -> list[Hospital]:
    torch.set_num_threads(1)
    made = []
    for site in ROWS:
        state = SiteState(tmp_path / site)
        state.prepare()
        outbox = Outbox(state.outbox_folder, AuditLog(state.audit_path, centre.clock), centre.clock)
        data = DataSection(file=cohort / f"{site}.csv")
        place = Workplace(site, state, outbox, data, POLICY, centre.clock)
        made.append(Hospital(centre.enrolled(site), state, place))
    return made


def plan_of(kind: str, start: str) -> str:
    """With the convex part of the prior, which is the default."""
    text = BINARY.replace("RULE", "youden") if kind == "binary" else SURVIVAL
    text = text.replace("[training]", f'[training]\nstart = "{start}"\nconsensus_share = 0.72')
    return text.replace("[rounds]", "[rounds]\nquorum = 1")


def served(centre: Centre, hospitals: list[Hospital], text: str) -> Small:
    """All rounds of a study; those who are missing are waited for until the deadline."""
    order = values.CreateStudyRequest(text, ROUNDS, SEED, tuple(ROWS))
    study = Small(centre.service.study(centre.operator.create_study(OPERATOR, order).study).terms)
    for hospital in hospitals:
        hospital.join(study)
    centre.control(study, "start")
    while (task := centre.task(study)).kind in TRAINING_TASKS:
        asked = [(hospital, hospital.line.next_task()) for hospital in hospitals]  # all are heard of first
        for hospital, request in asked:
            if request is not None:
                hospital.do(request, study.terms)
        if centre.task(study) == task:
            centre.clock.now = task.deadline_at
            centre.service.pass_time(centre.clock.now)
            assert centre.task(study) != task, "the round did not close without the missing"
    return study


def simulated(plan: StudyPlan, cohort: Path) -> Trained:
    return FedMap().train(Run(load_federation(plan, cohort), Unreliable(), ROUNDS, SEED), lambda _: None)


@pytest.mark.parametrize(("kind", "start"), [("binary", "local"), ("binary", "global"), ("cox", "local")])
def test_rounds_with_absences_give_the_simulators_models_bit_for_bit(
    kind: str, start: str, centre: Centre, hospitals: list[Hospital], cohort: Path
) -> None:
    text = plan_of(kind, start)
    expected = simulated(parse_plan(text, "toy.toml"), cohort)
    study = served(centre, hospitals, text)
    plan, network, name = study.terms.plan, study.model.network, study.terms.study
    assert plan.prior.convex

    with centre.store.reading() as transaction:
        results = {row.task: step_of(row) for row in transaction.results.list(name)}
    for record in expected.history:
        step, absent = results[f"round-{record.round}"], {one.site for one in record.failed}
        assert step.weights == record.weights, record.round
        assert step.absent == tuple(sorted(absent & record.weights.keys())), record.round

    digest = centre.service.study(name).state.prior_digest
    prior = decode_prior(network, plan.prior, centre.store.blobs.existing(digest)).prior
    assert expected.prior is not None
    assert torch.equal(prior.mu, expected.prior.mu)
    assert torch.equal(prior.psi, expected.prior.psi)
    assert torch.equal(prior.buffers.mean, expected.prior.buffers.mean)
    assert torch.equal(prior.buffers.variance, expected.prior.buffers.variance)

    own = {hospital.name: hospital.state.newest_model(name, network) for hospital in hospitals}
    personal = {site: one.parameters for site, one in own.items() if one is not None and one.is_personal}
    assert personal.keys() == expected.personal.keys() == {"north", "west"}
    for site, parameters in personal.items():
        assert torch.equal(parameters.theta, expected.personal[site].theta), site
        assert torch.equal(parameters.buffers.variance, expected.personal[site].buffers.variance), site
