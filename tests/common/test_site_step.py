"""The site's work on a task gives the simulator's numbers, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.fit.values import LocalFit, Model
from fedmap.algorithm.pooling.statistics import FeatureStatistics, make_scaler, pool_statistics
from fedmap.algorithm.prior.aggregation import SiteParameters, next_prior
from fedmap.contract.v1.values import (
    EvaluationAnswer,
    FailureAnswer,
    FitAnswer,
    GlobalRule,
    RuleAnswer,
    Task,
)
from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset, scale_dataset
from fedmap.errors import IncompatibleError, ModelError
from fedmap.metrics import Metric, MetricResult, SkippedMetric
from fedmap.scoring.decision_rules import pool_rule
from fedmap.scoring.evaluation import Scoring, local_rule
from fedmap.study.answers import Work, encode_work, result_of, told_rule
from fedmap.study.answers import terms_of as terms_told_by
from fedmap.study.engine import LoopEngine
from fedmap.study.models import model_of
from fedmap.study.personalisation import fine_tune
from fedmap.study.site_step import site_step
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.method import Run
from fedmap_lab.simulation.simulate import simulate
from fedmap_site.policy import SitePolicy
from tests.site_agent.stages import Bench, said, task, terms_of, write_site

SITES = {"east": 260, "north": 300, "west": 220}


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"
    folder.mkdir()
    lines = ["site,tier,region", *(f"{site},1," for site in SITES)]
    (folder / "sites.csv").write_text("\n".join(lines) + "\n")
    for number, (site, rows) in enumerate(SITES.items()):
        write_site(folder / f"{site}.csv", rows, number)
    return folder


def fine_tuned_scores(
    terms: StudyTerms, model: Model, final: PriorFile, site: SiteDataset
) -> list[MetricResult]:
    """What a T2 site with these rows would get from the same prior."""
    data = scale_dataset(terms.plan, site, final.scaler)
    fit = fine_tune(terms.plan, model, final.prior, data, terms.seed)
    assert isinstance(fit, LocalFit)
    own = SiteParameters(fit.theta, fit.buffers)
    rule = local_rule(terms.plan, model, own, data.train, data.validation)
    return list(Scoring(terms.plan, model, own, rule, data.test, data.train).measure())


@pytest.mark.parametrize(
    ("kind", "rule", "consensus_share"),
    [("binary", "prevalence", 0.0), ("binary", "youden", 0.75), ("cox", "", 0.0)],
)
def test_a_study_done_task_by_task_equals_the_simulation_bit_for_bit(
    cohort: Path, kind: str, rule: str, consensus_share: float
) -> None:
    torch.set_num_threads(1)
    terms = terms_of(kind, rule)
    training = replace(terms.plan.training, consensus_share=consensus_share)
    plan = terms.plan.model_copy(update={"training": training})
    terms = replace(terms, plan=plan, rounds=terms.rounds + 1)  # not the plan's number of rounds
    model, settings = model_of(plan), plan.settings
    data: dict[str, SiteDataset] = {site: load_site(plan, site, cohort / f"{site}.csv", 1) for site in SITES}
    federation = load_federation(plan, cohort)
    study = simulate(federation, FedMap(), LoopEngine(), terms.rounds, terms.seed)

    def ask(request: Task, site: str, prior: PriorFile | None, own: OwnModel | None = None) -> Work:
        return site_step(request, terms, data[site], prior, own, 5, lambda _stage, _share: None)

    statistics = {}
    for site in SITES:
        told = ask(task("statistics"), site, None).tensors
        assert isinstance(told, FeatureStatistics)
        statistics[site] = told
    scaler = make_scaler(pool_statistics(statistics), data["east"].layout.scaled)
    assert torch.equal(scaler.mean, federation.scaler.mean)
    assert torch.equal(scaler.deviation, federation.scaler.deviation)

    prior = Run(federation, LoopEngine(), 1, terms.seed).start(plan.prior)
    own: dict[str, OwnModel] = {}
    for number in range(1, terms.rounds + 1):
        updates, log_omega = {}, {}
        for site in SITES:
            work = ask(task("fit", number), site, PriorFile(prior, scaler), own.get(site))
            assert work.model is not None
            assert isinstance(work.tensors, SiteParameters)
            own[site], updates[site] = work.model, work.tensors
            log_omega[site] = said(work, FitAnswer).log_omega or 0.0
        step = next_prior(
            model.network.spec,
            settings.prior,
            settings.aggregation_in(number, terms.rounds),
            prior,
            log_omega,
            updates.__getitem__,
        )
        prior = step.prior
    assert study.trained.prior is not None
    assert torch.equal(prior.mu, study.trained.prior.mu)
    assert torch.equal(prior.psi, study.trained.prior.psi)
    assert torch.equal(prior.buffers.variance, study.trained.prior.buffers.variance)
    for site in SITES:
        assert torch.equal(own[site].parameters.theta, study.trained.personal[site].theta)

    final = PriorFile(prior, scaler)
    terms_by_site = {}
    for site in SITES:
        work = ask(task("rule"), site, final)
        file = encode_work(model.network, work.tensors) or None
        terms_by_site[site], _ = terms_told_by(plan, said(work, RuleAnswer), file)
    pooled = pool_rule(plan, terms_by_site)
    assert pooled.threshold == study.rule.threshold
    if study.rule.baseline is not None:
        assert pooled.baseline is not None
        assert torch.equal(pooled.baseline.cumulative, study.rule.baseline.cumulative)

    for site in SITES:
        work = ask(task("evaluate", rule=told_rule(pooled)), site, final, own[site])
        scores = [(score.model, result_of(score)) for score in said(work, EvaluationAnswer).scores]
        found = [one for one in scores if one[0] != "fine_tuned"]
        assert found == [(s.model, s.result) for s in study.scores if s.site == site]
        tuned = [result for name, result in scores if name == "fine_tuned"]
        assert tuned == fine_tuned_scores(terms, model, final, data[site])


def test_the_first_model_is_the_one_that_the_drawn_site_gives_in_the_simulation(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    theta = bench.work(task("initialise")).tensors
    assert isinstance(theta, torch.Tensor)
    assert torch.equal(theta, bench.prior().prior.mu)


@pytest.mark.parametrize(("number", "scored"), [(1, True), (2, True), (3, False), (4, True)])
def test_validation_scores_come_every_few_rounds_and_at_both_ends(
    tmp_path: Path, number: int, scored: bool
) -> None:
    work = Bench(tmp_path).work(task("fit", number))
    scores = said(work, FitAnswer).validation_scores
    assert [score.model for score in scores] == (["personal", "global"] if scored else [])
    assert all(isinstance(result_of(score), Metric) for score in scores)


def test_a_consensus_round_scores_the_sites_model_and_not_what_it_sends(tmp_path: Path) -> None:
    plan = terms_of().plan
    plan = plan.model_copy(update={"training": replace(plan.training, consensus_share=0.75)})
    bench = Bench(tmp_path, StudyTerms.of_plan(plan, seed=5))
    start, scaler = bench.prior().prior, bench.prior().scaler
    own = OwnModel(SiteParameters(start.mu, start.buffers), -3 * start.mu)
    work = bench.work(task("fit", 2), own=own)
    assert work.model is not None
    model, data = model_of(plan), scale_dataset(plan, bench.dataset(), scaler)

    def on_validation_rows(parameters: SiteParameters) -> list[MetricResult]:
        rule = local_rule(plan, model, parameters, data.train, data.validation)
        scoring = Scoring(plan, model, parameters, rule, data.validation, data.train)
        return list(scoring.measure([plan.task.metric]))

    personal = [result_of(one) for one in said(work, FitAnswer).validation_scores if one.model == "personal"]
    assert personal == on_validation_rows(work.model.parameters)
    assert personal != on_validation_rows(work.model.update), "the test could not tell them apart"


def test_a_round_done_again_gives_the_same_bytes_and_progress_is_told_epoch_by_epoch(tmp_path: Path) -> None:
    bench, told = Bench(tmp_path), list[tuple[str, float]]()
    first = bench.work(task("fit", 3))
    again = Bench(tmp_path).work(task("fit", 3), on_progress=lambda stage, share: told.append((stage, share)))
    network = model_of(bench.terms.plan).network
    assert encode_work(network, first.tensors) == encode_work(network, again.tensors)
    assert first.content == again.content
    assert (told[0], told[-1], len(told)) == (("training", 0.0), ("training", 1.0), 4)


def test_a_site_without_events_answers_without_weight_and_tensors_but_keeps_its_model(
    tmp_path: Path,
) -> None:
    write_site(tmp_path / "north.csv", 120, 2, share=0.0)
    policy = SitePolicy(min_rows=10, min_events=0, min_cell=5)
    terms = terms_of("cox")
    limits = terms.plan.limits.model_copy(update={"min_events": 0})
    terms = terms_of("cox").of_plan(terms.plan.model_copy(update={"limits": limits}), seed=5)
    work = Bench(tmp_path, terms, policy).work(task("fit", 3))
    assert said(work, FitAnswer).log_omega is None
    assert work.tensors is None
    assert work.model is not None


def test_a_fit_that_diverges_is_a_failure_answer_whose_reason_stays_home(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    broken = bench.prior()
    broken.prior.mu.fill_(3e38)
    work = bench.work(task("fit", 1), prior=broken)
    failure = said(work, FailureAnswer)
    assert failure.code == "training"
    assert work.error is not None
    assert work.error.message not in failure.reason
    assert work.model is None


@pytest.mark.parametrize("kept", ["nothing", "of a consensus round", "of a round of its own"])
def test_only_a_model_of_the_sites_own_is_scored_as_one(tmp_path: Path, kept: str) -> None:
    bench = Bench(tmp_path)
    prior = bench.prior().prior
    mine = OwnModel(SiteParameters(prior.mu, prior.buffers))
    models = {"nothing": None, "of a consensus round": replace(mine, multiplier=torch.zeros_like(prior.mu))}
    work = bench.work(task("evaluate", rule=GlobalRule(threshold=0.5)), own=models.get(kept, mine))
    personal = [result_of(s) for s in said(work, EvaluationAnswer).scores if s.model == "personal"]
    assert personal
    skipped = all(isinstance(result, SkippedMetric) for result in personal)
    assert skipped is (kept != "of a round of its own")


def test_a_task_without_its_prior_or_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(ModelError, match="without a prior"):
        site_step(task("fit", 1), bench.terms, bench.dataset(), None, None, 5, lambda _stage, _share: None)
    with pytest.raises(IncompatibleError):
        bench.work(task("unspecified"))


def test_rare_values_are_not_in_the_statistics(tmp_path: Path) -> None:
    lines = ["patient,a,b,smoking,sick,years"]
    for row in range(200):
        a = 7.5 if row in (3, 50) else 0.0
        lines.append(f"p{row},{a},{row % 17},{'yes' if row == 9 else 'no'},{row % 2},1.0")
    (tmp_path / "north.csv").write_text("\n".join(lines) + "\n")
    bench = Bench(tmp_path)
    work = bench.work(task("statistics"))
    assert isinstance(work.tensors, FeatureStatistics)
    assert work.tensors.mean[[0, 2]].tolist() == [0.0, 0.0]
    assert work.tensors.m2[[0, 2]].tolist() == [0.0, 0.0]
    assert work.tensors.mean[1] != 0
    assert len(work.notes) == 2
